"""Events (log lines and counters), metrics and probes of long-running processes."""
