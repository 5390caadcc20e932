"""No event loop anywhere: a nightly script that enqueues jobs, runs them, and says how they went."""

import redrive

rd = redrive.Redrive("nightly.db")


@rd.task(max_attempts=1)
def resize(name: str, width: int) -> str:
    if width <= 0:
        raise redrive.GiveUp(f"{name}: width {width} makes no sense", recommendation="Correct the list, enqueue anew.")
    return f"{name}-{width}.png"


def main() -> None:
    with rd.blocking() as queue:
        cover = resize.blocking.enqueue("cover", 800)
        night = queue.enqueue_many("resize", [{"name": "a", "width": 10}, {"name": "b", "width": -1}, {"name": "c"}])
        for index, problem in night.refused.items():
            print(f"refused item {index}: {problem}")
        queue.drain()
        print(cover.result())
        health = queue.health()
        print(f"{health.status}: {health.total_dead_letter} dead")
        for job in queue.run(rd.dead.list()).jobs:
            print(f"{job.arguments['name']}: {job.error}. {job.recommendation}")


if __name__ == "__main__":
    main()
