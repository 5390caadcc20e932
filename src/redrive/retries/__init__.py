"""Decides what to do about a cause: wait, change something, hand over or stop. Pure."""
