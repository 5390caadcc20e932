"""`redrive demo`: a first minute with redrive."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="See it work: jobs, a killed worker, nothing lost.")
@click.option("--file", type=click.Path(path_type=Path), help="The database; a new temporary folder if not given.")
@click.option("--jobs", metavar="N", type=click.IntRange(1, 100_000), default=300, show_default=True)
@click.option("--plain", is_flag=True, help="No live view.")
def demo(file: Path | None, jobs: int, plain: bool) -> int | None:
    """See it work: a few hundred jobs, one worker killed midway, nothing lost."""
    from redrive.doors.demo import run

    return run(file=file, jobs=jobs, plain=plain)
