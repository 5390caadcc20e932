"""Reads and explains: needs, health, morning, periods, timelines. Writes nothing but notices."""
