"""``framegate config``: the configuration of a running framegate, shown, compared, applied and saved; and what its keys mean."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.local import print_faults
from framegate.control.cli.options import EXIT_NOT_FOUND, Change, admin_options, change_options, example, output_option
from framegate.control.cli.output import as_dict, counted, print_json, print_note, print_table, word, write_text

if TYPE_CHECKING:
    from framegate.control.configuration.manual import Entry
    from framegate.control.v1 import configuration_service_pb2 as pb2

_SERVICE: Final = Service("configuration")
MAX_TEXT: Final = 240 * 1024  # bytes of a file that fits into a request
_PATIENCE_S: Final = 60.0  # a configuration is read and checked, and each processor may take half a minute
_MOST_COLUMNS: Final = 100
_FILE: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)
_HEADINGS: Final = ("KEY", "IN FORCE", "NEW", "EFFECT")
_SAVED: Final = "# Written by `framegate config save`. For the meaning of a key: `framegate config explain KEY`.\n"


@click.group(
    epilog=example(
        "framegate config show", "framegate config diff framegate.yaml", "framegate config apply framegate.yaml --reason 'two more listeners'"
    )
)
def config() -> None:
    """The configuration: show what a running framegate has, compare it with a file, apply a file while traffic flows, save what was set by hand."""


@config.command(epilog=example("framegate config show", "framegate config show --effective", "framegate config show -o json"))
@click.option("--effective", is_flag=True, help="What is in force: with what was set by hand, and with the keys that have their default.")
@admin_options
def show(effective: bool, address: str, output: str) -> None:
    """Show the configuration as YAML, as it was loaded from the file last. Comments are not kept, and paths are absolute."""
    found = _get(address, in_force=effective, defaults=effective)
    if output == "json":
        print_json(as_dict(found))
        return
    write_text(found.text)
    if found.difference_count and not effective:
        print_note(f"{counted(found.difference_count, 'value')} in force differ from it: framegate config show --effective, framegate status")


@config.command(epilog=example("framegate config diff framegate.yaml", "framegate config diff", "framegate config diff - < new.yaml"))
@click.argument("file", type=_FILE, required=False)
@admin_options
def diff(file: str | None, address: str, output: str) -> None:
    """Show what applying a configuration would change, and when each change would be in force: now, for new connections, or after a restart.

    FILE is read here (- is standard input); relative paths in it start at the folder of framegate's own file, and the files that it names are read by
    framegate. Without FILE, framegate reads its own file.

    Exit codes: 0 success, with or without differences; 2 the configuration has faults.
    """
    answer = _apply(address, file, _read(file), output, Change(dry_run=True))
    _print_differences(answer, output)


@config.command(
    epilog=example(
        "framegate config apply framegate.yaml --dry-run",
        "framegate config apply framegate.yaml --reason 'larger frames for billing'",
        "framegate config apply      # framegate's own file, as SIGHUP does",
    )
)
@click.argument("file", type=_FILE, required=False)
@change_options()
@admin_options
def apply(file: str | None, change: Change, address: str, output: str) -> None:
    """Apply a whole configuration while traffic flows: in every processor, or nothing of it. What was set by hand is replaced.

    FILE is as of `framegate config diff`. It is not written to framegate's own file, which the next restart loads. A configuration with a fault, or
    with a change that needs a restart, changes nothing.

    Exit codes: 0 success; 1 a change needs a restart, or the state does not allow it; 2 the configuration has faults; 4 another configuration is in
    force than the one with the etag, or a processor refused.
    """
    text = _read(file)
    answer = _apply(address, file, text, output, change._replace(dry_run=True))
    if not change.dry_run:
        answer = _apply(address, file, text, output, change._replace(etag=change.etag or answer.etag))
    _print_differences(answer, output)
    if change.dry_run:
        print_note("nothing was changed: --dry-run")
    elif output == "table":
        print_note(f"applied, {counted(answer.difference_count, 'value')} changed; etag {answer.etag}")


@config.command(epilog=example("framegate config save", "framegate config save -", "framegate config save /etc/framegate/framegate.yaml"))
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), required=False)
@admin_options
def save(file: str | None, address: str, output: str) -> None:
    """Write the configuration in force to a file, so that a restart keeps what was set by hand.

    Without FILE it is framegate's own file; - is standard output. What was in the file is kept beside it as FILE.old. The new file has no comments,
    only keys that do not have their default, and absolute paths. The folder of a ConfigMap cannot be written: change the ConfigMap instead.
    """
    found = _get(address, in_force=True, defaults=False)
    if file == "-":
        print_json(as_dict(found)) if output == "json" else write_text(_SAVED + found.text)
        return
    path = os.path.realpath(file or found.file)
    try:
        _write(path, _SAVED + found.text)
    except OSError as error:
        print_note(f"{path} cannot be written: {error.strerror or error}; framegate config save - prints it")
        sys.exit(1)
    if path == os.path.realpath(found.file):  # framegate loads it, which changes nothing in force
        _apply(address, None, None, output, Change(etag=found.etag, reason="config save"))
    if output == "json":
        print_json({"file": path, "etag": found.etag, "difference_count": found.difference_count})
        return
    print_note(f"{path} is written, with {counted(found.difference_count, 'value')} that the file did not have")


def _get(address: str, *, in_force: bool, defaults: bool) -> "pb2.Configuration":
    view = "VIEW_IN_FORCE" if in_force else "VIEW_FILE"
    with calling(address) as channel:
        found: pb2.Configuration = _SERVICE.ask(channel, "GetConfiguration", view=view, include_defaults=defaults).configuration
        return found


def _apply(address: str, file: str | None, text: str | None, output: str, change: Change) -> "pb2.ApplyConfigurationResponse":
    """Apply a file, or check it. One with faults ends the process with 2, after all of them were printed."""
    with calling(address, change=not change.dry_run) as channel:
        answer: pb2.ApplyConfigurationResponse
        if change.dry_run:
            answer = _SERVICE.ask(channel, "ApplyConfiguration", _PATIENCE_S, text=text, etag=change.etag, validate_only=True)
        else:
            answer = _SERVICE.change(channel, "ApplyConfiguration", change, _PATIENCE_S, text=text)
    if change.dry_run and (answer.faults or (answer.warnings and output == "table")):
        print_faults(file or "framegate's file", answer.faults, answer.warnings, output)
    if answer.faults:
        sys.exit(2)
    return answer


def _read(file: str | None) -> str | None:
    if file is None:
        return None
    data = sys.stdin.buffer.read(MAX_TEXT + 1) if file == "-" else pathlib.Path(file).read_bytes()
    if len(data) > MAX_TEXT:
        raise click.UsageError(f"{file} is larger than {MAX_TEXT // 1024} KiB: put it in place of framegate's own file, and give no FILE")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is not UTF-8") from error


def difference_rows(found: "Iterable[pb2.Difference]") -> list[tuple[str, str, str, str]]:
    """Differences as rows of a table."""
    rows = []
    for item in found:
        before, after = (getattr(item, name) if item.HasField(name) else "-" for name in ("before", "after"))
        rows.append((item.path, before, after, word(type(item).Effect.Name(item.effect), "EFFECT_").replace("_", " ")))
    return rows


def _print_differences(answer: "pb2.ApplyConfigurationResponse", output: str) -> None:
    if output == "json":
        print_json(as_dict(answer))
    elif answer.differences:
        print_table(_HEADINGS, difference_rows(answer.differences))
    else:
        print_note("there is no difference")


def _write(path: str, text: str) -> None:
    """Replace a file in one step, with the permissions that it has; the old one stays as ``.old``."""
    handle, new = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".framegate")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            shutil.copy2(path, f"{path}.old")
        shutil.copymode(path, new) if os.path.exists(path) else os.chmod(new, 0o644)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from framegate.control.configuration.manual import entries

    return [name for name in entries() if name.startswith(incomplete)]


@config.command(
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
