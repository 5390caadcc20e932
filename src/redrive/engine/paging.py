"""Reads all jobs that a filter matches, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from redrive.core.job import Job
from redrive.core.store import Filter, Store


async def read_pages(store: Store, chosen: Filter, size: int, *, oldest: bool = False) -> AsyncIterator[list[Job]]:
    """Yields the non-empty pages of a filter. Each page is read only when the page before it has been processed."""
    cursor = None
    while True:
        page = await store.find(chosen, cursor, size, oldest=oldest)
        if page.jobs:
            yield page.jobs
        cursor = page.cursor
        if cursor is None:
            return


async def read_jobs(store: Store, chosen: Filter, size: int, *, oldest: bool = False) -> AsyncIterator[Job]:
    """Yields every job that a filter matches, even if the caller moves none of them, so that none hides another."""
    async for page in read_pages(store, chosen, size, oldest=oldest):
        for job in page:
            yield job
