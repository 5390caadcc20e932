"""Tells people and sessions: notices, the courier, inboxes, sessions."""
