"""Spark applications on lakes and streams: what `braid spark NAME` runs."""
