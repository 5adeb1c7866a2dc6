"""What `braid spark NAME` runs."""
