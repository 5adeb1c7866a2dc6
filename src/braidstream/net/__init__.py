"""Connections to engines: addresses, Sentinel, RESP, pipelined and bulk connections."""
