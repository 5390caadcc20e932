"""Runs jobs: workers, attempts, settling, leases, the scheduler."""
