"""Everything that a filter matches, a page at a time, however much it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

from redrive.core.job import Job
from redrive.core.store import Filter, Store


async def read_pages(store: Store, chosen: Filter, size: int, *, oldest: bool = False) -> AsyncIterator[list[Job]]:
    """No page is empty. The next is read when the one before is dealt with, and goes on behind it."""
    cursor = None
    while True:
        page = await store.find(chosen, cursor, size, oldest=oldest)
        if page.jobs:
            yield page.jobs
        cursor = page.cursor
        if cursor is None:
            return
