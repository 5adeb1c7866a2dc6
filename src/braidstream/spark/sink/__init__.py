"""The Spark sink: tasks stage, the driver commits."""
