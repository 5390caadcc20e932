"""Steps that are remembered and effects that happen once, though the task fails twice on the way."""

import asyncio

import redrive

rd = redrive.Redrive("effects.db")
calls = {"summarise": 0, "post": 0}
posts: dict[str, str] = {}  # the receiver: it knows what it has


def summarise(text: str) -> str:
    calls["summarise"] += 1
    return text.split(".")[0]


def post(slug: str, text: str, key: str) -> str:
    calls["post"] += 1
    posts[slug] = text
    raise TimeoutError("the answer was lost")  # it landed, and we are not told


def find(slug: str) -> str | None:
    return f"/articles/{slug}" if slug in posts else None


@rd.task(base=0.05)
async def publish(ctx: redrive.Context, slug: str, text: str) -> str:
    summary = await ctx.step("summarise", summarise, text)
    url = await ctx.once("post", lambda key: post(slug, summary, key), verify=lambda key: find(slug))
    if ctx.attempt == 2:
        raise ConnectionError("the second attempt fails after everything was done")
    return url


async def main() -> None:
    async with rd, rd.worker():
        job = await publish.enqueue("q3", "We grew. A lot of detail follows.")
        print(await job.result(timeout=30))
        done = await job.refresh()
        print(f"{done.attempts} attempts, {calls['summarise']} summary, {calls['post']} post")


if __name__ == "__main__":
    asyncio.run(main())
