"""What each command does, as plans. One file per family; `table.py` maps wire names to them."""
