from fastapi import FastAPI

import redrive

rd = redrive.Redrive("jobs.db")
app = FastAPI(lifespan=rd.lifespan(worker=True))
app.mount("/queue", redrive.asgi(rd))


@rd.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.post("/greetings/{name}", status_code=202)
async def accept(name: str) -> dict[str, str]:
    job = await greet.enqueue(name)
    return {"job": job.id, "see": f"/queue/jobs/{job.id}"}
