"""Keeps plain NATS streams beside a fleet's log for other programs: tasks come in, dead letters and retries go out."""
