"""One region's daemon: its peers, queues, leases and reports."""
