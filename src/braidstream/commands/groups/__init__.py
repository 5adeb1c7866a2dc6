"""Consumer groups: XGROUP, XACK, XPENDING, XCLAIM, XAUTOCLAIM, XNACK, and their status."""
