"""The conversation with an engine, without I/O: plans, batches, and the cache of streams."""
