"""The `braid` command: one file per verb, `main.py` joins them."""
