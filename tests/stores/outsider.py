"""Another process that uses the same store: python -m tests.stores.outsider PLACE FOLDER, one command a line.

insert ID      accepts a job with this id, answers "accepted ID"
claim N        takes up to N jobs and keeps them, answers "claimed ID ..."
exit           closes the store and ends
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from redrive.core.store import Store, Wanted
from tests.stores.jobs import T0, a_job
from tests.stores.places import PLACES


async def obey(store: Store, line: str) -> str:
    verb, _, rest = line.partition(" ")
    if verb == "insert":
        await store.insert([a_job(id=rest)])
        return f"accepted {rest}"
    if verb == "claim":
        claim = await store.claim(Wanted(int(rest)), "outsider", T0 + 1)
        return " ".join(["claimed", *(job.id for job in claim.jobs)])
    raise SystemExit(f"what is {line!r}?")


async def main(place: str, folder: str) -> None:
    store = PLACES[place](Path(folder)).store()
    await store.open()
    print("open", flush=True)
    while (line := (await asyncio.to_thread(sys.stdin.readline)).strip()) not in ("", "exit"):
        print(await obey(store, line), flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
