"""Values without I/O: IDs, keys, strands, merge order, frontiers, the stored registry."""
