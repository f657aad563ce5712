"""``framegate explain``: what a channel, or the channels of a listener, wait for."""

import re
from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, calling
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import as_dict, print_json, print_line

if TYPE_CHECKING:
    from framegate.control.v1.explanation_service_pb2 import ExplainChannelResponse, ExplainListenerResponse

_CHANNEL: Final = re.compile(r"\d+-\d+-\d+")


@click.command(short_help="Explain what connections wait for.", epilog=example("framegate explain kafka", "framegate explain 0-1-42"))
@click.argument("what", metavar="ID|LISTENER")
@admin_options
def explain(what: str, address: str, output: str) -> None:
    """Explain what a channel, or the channels of a listener, wait for: who holds them up, and since when, in sentences with figures.

    `framegate config explain` explains keys of the configuration.
    """
    from framegate.control.v1 import explanation_service_pb2 as pb2
    from framegate.control.v1.explanation_service_pb2_grpc import ExplanationServiceStub

    answer: ExplainChannelResponse | ExplainListenerResponse
    with calling(address) as channel:
        stub = ExplanationServiceStub(channel)
        if _CHANNEL.fullmatch(what):
            answer = stub.ExplainChannel(pb2.ExplainChannelRequest(id=what), timeout=CALL_TIMEOUT_S)
        else:
            answer = stub.ExplainListener(pb2.ExplainListenerRequest(listener=what), timeout=CALL_TIMEOUT_S)
    if output == "json":
        print_json(as_dict(answer))
        return
    print_line(answer.summary)
    for wait in answer.waits:
        print_line(f"- {wait.text}")
