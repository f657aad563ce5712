"""``framegate config explain``: the meaning of a configuration key."""

import dataclasses
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.options import EXIT_NOT_FOUND, example, output_option
from framegate.control.cli.output import print_json, print_note, write_text

if TYPE_CHECKING:
    from framegate.control.configuration.manual import Entry

_MOST_COLUMNS: Final = 100


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from framegate.control.configuration.manual import entries

    return [name for name in entries() if name.startswith(incomplete)]


@click.command(
    short_help="Explain a configuration key.",
    epilog=example(
        "framegate config explain",
        "framegate config explain tap.budget",
        "framegate config explain listeners.tls",
        "framegate config explain 'listeners[0].tls.key'",
    ),
)
@click.argument("key", default="", shell_complete=_complete)
@output_option
def explain(key: str, output: str) -> None:
    """Explain a configuration key: meaning, unit, range, default, risks, and an example.

    KEY is written as in the output of `framegate check`, for example listeners[0].tls.key, or without the brackets. If KEY is a section, its keys
    are listed. Without KEY, the sections of the file are listed.

    Exit codes: 0 success; 3 there is no such key.
    """
    from framegate.control.configuration.manual import entries, find, nearest

    entry = find(key)
    if key and entry is None:
        near = nearest(key)
        print_note(f"there is no key {key}; " + (f"similar keys: {', '.join(near)}" if near else "framegate config explain lists all sections"))
        sys.exit(EXIT_NOT_FOUND)
    listed = [item for item in entries().values() if item.path.rpartition(".")[0] == ("" if entry is None else entry.path)]
    if output == "json":
        print_json([dataclasses.asdict(item) for item in listed] if entry is None else dataclasses.asdict(entry))
        return
    columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    lines = [*([] if entry is None else _described(entry, columns)), *_listed(listed, columns)]
    write_text("".join(f"{line}\n" for line in lines))


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
        "change": {"now": "while framegate runs", "new connections": "while framegate runs, for new connections"}.get(entry.effect, "by a restart"),
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
