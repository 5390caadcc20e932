"""The read side: what the numbers mean. Pure."""
