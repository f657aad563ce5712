"""``framegate explain``: what a channel, or the channels of a listener, wait for."""

import re
from typing import Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import as_dict, print_json, print_line

_SERVICE: Final = Service("explanation")
_CHANNEL: Final = re.compile(r"\d+-\d+-\d+")


@click.command(short_help="Explain what connections wait for.", epilog=example("framegate explain kafka", "framegate explain 0-1-42"))
@click.argument("what", metavar="ID|LISTENER")
@admin_options
def explain(what: str, address: str, output: str) -> None:
    """Explain what a channel, or the channels of a listener, wait for: who holds them up, and since when, in sentences with figures.

    `framegate config explain` explains keys of the configuration.
    """
    with calling(address) as channel:
        if _CHANNEL.fullmatch(what):
            answer = _SERVICE.ask(channel, "ExplainChannel", id=what)
        else:
            answer = _SERVICE.ask(channel, "ExplainListener", listener=what)
    if output == "json":
        print_json(as_dict(answer))
        return
    print_line(answer.summary)
    for wait in answer.waits:
        print_line(f"- {wait.text}")
