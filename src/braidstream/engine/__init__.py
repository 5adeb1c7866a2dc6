"""One engine: where it is, what it says, connections to it."""
