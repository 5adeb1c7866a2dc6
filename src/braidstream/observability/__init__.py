"""What long-running processes tell: named events, each one log line and one counter."""
