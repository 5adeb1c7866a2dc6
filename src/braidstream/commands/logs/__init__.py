"""Logs (RCP 11): streams whose entries have dense offsets."""
