"""Two jobs of the slow service at once and never more, while another queue goes on at full width."""

import asyncio
from collections import Counter

import redrive

rd = redrive.Redrive("limits.db", queues={"crm": redrive.Policy(concurrency=2)})
running: Counter[str] = Counter()
most: Counter[str] = Counter()


async def work(queue: str) -> None:
    running[queue] += 1
    most[queue] = max(most[queue], running[queue])
    await asyncio.sleep(0.02)
    running[queue] -= 1


@rd.task(queue="crm")
async def sync_contact(contact: int) -> None:
    await work("crm")


@rd.task
async def index(page: int) -> None:
    await work("index")


async def main() -> None:
    async with rd:
        await rd.enqueue_many("sync_contact", [{"contact": n} for n in range(12)])
        await rd.enqueue_many("index", [{"page": n} for n in range(12)])
        await rd.drain(concurrency=20)
        print(f"most at once: crm {most['crm']}, index more than that: {most['index'] > 2}")


if __name__ == "__main__":
    asyncio.run(main())
