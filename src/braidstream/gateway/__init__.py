"""The gateway: a RESP2 and RESP3 server before a region's engine, for any Redis client in any language."""
