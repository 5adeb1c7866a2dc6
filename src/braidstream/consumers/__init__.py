"""Consumers: workers of a group. The core has no I/O; `threads.py` and `tasks.py` drive it."""
