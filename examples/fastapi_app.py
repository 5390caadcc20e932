import cms  # a client of the service that you call, with post() and find()
from fastapi import FastAPI

import redrive

rd = redrive.Redrive("jobs.db")
app = FastAPI(lifespan=rd.lifespan(worker=True))


@rd.task
async def publish(ctx: redrive.Context, slug: str, draft: str) -> str:
    return await ctx.once("post", lambda key: cms.post(slug, draft, key), verify=lambda key: cms.find(slug))


@app.post("/articles/{slug}", status_code=202)
async def accept(slug: str, draft: str) -> dict[str, str]:
    # asyncio.create_task(publish(slug, draft))
    job = await publish.enqueue(slug, draft)
    return {"job": job.id}
