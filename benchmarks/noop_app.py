"""An application whose one task does nothing: `redrive serve benchmarks.noop_app:rd`."""

from redrive import Redrive

rd = Redrive()


@rd.task
async def noop(n: int) -> int:
    return n
