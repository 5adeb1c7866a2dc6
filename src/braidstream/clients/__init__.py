"""redis-py clients whose stream commands run plans."""
