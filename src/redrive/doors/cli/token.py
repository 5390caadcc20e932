"""`redrive token`: what programs and browsers must show to be let in."""

from __future__ import annotations

import click

from redrive.doors.cli import output
from redrive.doors.cli.asking import connect, refuse_missing, shared
from redrive.doors.cli.problems import Problem
from redrive.doors.cli.serve import HOST, PORT, link_to


@click.command(short_help="Show the token of this database's server.")
@click.option("--rotate", is_flag=True, help="Make a new one. The old one opens nothing any more, from this moment on.")
@click.option("--link", is_flag=True, help="The link that lets a browser in, instead of the token.")
@click.option(
    "--port", metavar="N", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="For the link."
)
@shared
def token(rotate: bool, link: bool, port: int) -> None:
    """Show the token of this database's server; make it where there is none yet.

    Programs send it: curl -H "Authorization: Bearer $(redrive token)" http://127.0.0.1:8420/v1/health
    """
    from redrive.doors.web import token_file

    rd = connect(creates=True)
    kept = token_file(rd)
    if kept.path is None:
        raise Problem("a database in memory has no token of its own", "name a file with --url or REDRIVE_URL")
    refuse_missing(rd)  # a slip in the name would leave a token for nothing
    found = kept.rotate() if rotate else kept()
    shown = link_to(HOST, port, found)
    if output.as_json():
        output.say_json({"token": found, "link": shown, "file": str(kept.path)})
    else:
        output.say(shown if link else found)
