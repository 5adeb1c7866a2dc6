"""XREADGROUP: its arguments, delivery, blocking."""
