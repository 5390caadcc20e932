"""Turns an exception or a bad result into a failure record, and the record into a cause."""
