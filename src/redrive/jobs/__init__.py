"""Accepts jobs, finds them, moves one, waits for one; opens the store."""
