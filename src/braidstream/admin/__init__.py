"""Plans behind the CLI: make a database a region, join, leave, tune."""
