"""Delivers HTTP requests: addresses, requests, transport."""
