"""redis-py clients whose stream commands run as plans. Only this folder imports redis."""
