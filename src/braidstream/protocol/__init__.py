"""The conversation with an engine, without I/O: plans, and what a client remembers of a stream."""
