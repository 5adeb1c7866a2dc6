"""Which streams changed, and which copies differ."""
