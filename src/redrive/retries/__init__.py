"""Decides what to do about a cause of failure: wait, change the input, hand over to a person or stop. Pure."""
