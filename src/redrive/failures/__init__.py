"""Turns what went wrong into a failure record, and the record into a cause."""
