"""A lake: entries of streams as Parquet files in a folder, and the log that says which files count."""
