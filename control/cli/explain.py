"""``framegate explain``: the meaning of a configuration key; what a channel, or the channels of a listener, wait for."""

import dataclasses
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, calling
from framegate.control.cli.options import EXIT_NOT_FOUND, admin_options, example
from framegate.control.cli.output import as_dict, print_json, print_line, print_note, write_text

if TYPE_CHECKING:
    from framegate.control.configuration.manual import Entry
    from framegate.control.v1.explanation_service_pb2 import ExplainChannelResponse, ExplainListenerResponse

    Answer = ExplainChannelResponse | ExplainListenerResponse

__all__ = ["explain"]

_MOST_COLUMNS: Final = 100
_CHANNEL: Final = re.compile(r"\d+-\d+-\d+")
_NAME: Final = re.compile(r"[\w-]+")
_LISTENER: Final = "listener="


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from framegate.control.configuration.manual import entries

    return [name for name in entries() if name.startswith(incomplete)]


@click.command(
    short_help="Explain a channel, a listener, or a configuration key.",
    epilog=example(
        "framegate explain 0-1-42", "framegate explain listener=kafka", "framegate explain tap.budget", "framegate explain 'listeners[0].tls.key'"
    ),
)
@click.argument("what", default="", shell_complete=_complete)
@admin_options
def explain(what: str, address: str, output: str) -> None:
    """Explain what a channel, or the channels of a listener, wait for: who holds them up, and since when. Or explain a configuration key.

    WHAT is the id of a channel as in `framegate channels list`; listener=NAME, or only the name if there is no such key; or a key.

    A key is written as in the output of `framegate check`, for example listeners[0].tls.key, or without the brackets. The output has its meaning,
    unit, range, default, risks, and an example; or the keys of a section. Without WHAT, the sections of the file are listed.

    Exit codes: 0 success; 3 there is no such channel, listener or key.
    """
    from framegate.control.configuration.manual import entries, find, nearest

    entry = find(what)
    if _CHANNEL.fullmatch(what) or what.startswith(_LISTENER):
        _print(_explained(what, address), output)
        return
    if what and entry is None:
        answer = _explained(f"{_LISTENER}{what}", address, optional=True) if _NAME.fullmatch(what) else None
        if answer is None:
            near = nearest(what)
            print_note(f"there is no key {what}; " + (f"similar keys: {', '.join(near)}" if near else "framegate explain lists all sections"))
            sys.exit(EXIT_NOT_FOUND)
        _print(answer, output)
        return
    listed = [item for item in entries().values() if item.path.rpartition(".")[0] == ("" if entry is None else entry.path)]
    if output == "json":
        print_json([dataclasses.asdict(item) for item in listed] if entry is None else dataclasses.asdict(entry))
        return
    columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    lines = [*([] if entry is None else _described(entry, columns)), *_listed(listed, columns)]
    write_text("".join(f"{line}\n" for line in lines))


def _explained(what: str, address: str, *, optional: bool = False) -> "Answer | None":
    """The answer for a channel or ``listener=NAME``; None, if ``optional``, if there is none or the API cannot be reached."""
    import grpc

    from framegate.control.v1 import explanation_service_pb2 as pb2
    from framegate.control.v1.explanation_service_pb2_grpc import ExplanationServiceStub

    with calling(address) as channel:
        stub = ExplanationServiceStub(channel)
        try:
            if _CHANNEL.fullmatch(what):
                return stub.ExplainChannel(pb2.ExplainChannelRequest(id=what), timeout=CALL_TIMEOUT_S)
            return stub.ExplainListener(pb2.ExplainListenerRequest(listener=what.removeprefix(_LISTENER)), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if optional and error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                return None
            raise


def _print(answer: "Answer | None", output: str) -> None:
    assert answer is not None, "only what is optional may be missing"
    if output == "json":
        print_json(as_dict(answer))
        return
    print_line(answer.summary)
    for wait in answer.waits:
        print_line(f"- {wait.text}")


def _described(entry: "Entry", columns: int) -> Iterator[str]:
    """The description of one key; lines of tables are not wrapped."""
    yield from (entry.path, "")
    for text in entry.text:
        yield from [f"  {text}"] if text.startswith(" ") else _wrapped(text, columns)
    if entry.danger:
        yield from ("", *_wrapped(f"Danger: {entry.danger}", columns))
    yield ""
    facts = {
        "type": entry.type,
        "one of": ", ".join(entry.words),
        "range": entry.range,
        "default": entry.default or ("none; the key is required" if entry.required else ""),
        "change": "" if entry.keys else "at run time, or by a restart" if entry.live else "by a restart",
        "example": entry.example,
    }
    for name, value in facts.items():
        if value:
            yield from textwrap.wrap(f"  {name:<9}{value}", columns, subsequent_indent=" " * 11, break_long_words=False)
    if entry.keys:
        yield from ("", "  keys:")


def _listed(listed: "list[Entry]", columns: int) -> Iterator[str]:
    """The keys of a section, one per line."""
    names = [item.path.rpartition(".")[2] for item in listed]
    width = max(map(len, names), default=0)
    for name, item in zip(names, listed, strict=True):
        yield f"  {name:<{width}}  {textwrap.shorten(item.text[0], max(columns - width - 4, 20), placeholder=' …')}"


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
