import redrive

rd = redrive.Redrive("jobs.db")


@rd.task
def greet(name: str) -> str:
    return f"Hello, {name}"


with rd.blocking() as queue:
    job = greet.blocking.enqueue("Ada")  # the job is on disk when this line returns
    queue.drain()  # run what is due, as a worker does
    print(job.result())
