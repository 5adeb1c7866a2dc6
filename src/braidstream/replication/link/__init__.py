"""One direction between two regions: pages read, entries in flight, state compared."""
