"""Tables for people, JSON for programs; both on standard output. What is said besides goes to standard error.

A table is as wide as what stands in it, on a terminal as well: a narrow one wraps lines, which can be read, copied and searched; cells folded to
its width cannot. What clients and operators wrote (names of certificates, reasons) is shown with its control characters escaped.
"""

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from control.configuration.units import counted

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "EXIT_BROKEN_PIPE",
    "UnwritableError",
    "age_text",
    "as_dict",
    "counted",
    "print_fields",
    "print_json",
    "print_line",
    "print_note",
    "print_table",
    "shown",
    "size_text",
    "time_text",
    "word",
    "write_bytes",
    "write_text",
]

EXIT_BROKEN_PIPE: Final = 141
"""What a shell says of a program that SIGPIPE ended, as of ``ls | head``."""
_EXIT_FAILED: Final = 1
_WIDE: Final = 100_000


class UnwritableError(SystemExit):
    """The output cannot be written, and standard error says why; it ends the process with code 1, unless that means something else there."""


def print_note(text: str) -> None:
    """One line on standard error; where that cannot be written nobody can be told, and what the process comes to says the exit code."""
    if sys.stderr is None:
        return
    try:
        print(f"framegate: {shown(text)}", file=sys.stderr, flush=True)
    except OSError:
        _abandon(sys.stderr)


def print_line(text: str) -> None:
    """One line on standard output."""
    write_text(f"{shown(text)}\n")


def write_text(text: str) -> None:
    """Text as it is; all of a command's output goes through here. Ends the process when nobody reads it any more, or it cannot be written."""
    if sys.stdout is None:
        return  # closed before we were started
    _written(lambda: sys.stdout.write(text))


def write_bytes(data: "bytes | memoryview") -> None:
    """Bytes as they are, in place of text. Ends the process as ``write_text``."""
    if sys.stdout is None:
        return
    _written(lambda: sys.stdout.buffer.write(data))


def _written(write: Callable[[], object]) -> None:
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon(sys.stdout)
        sys.exit(EXIT_BROKEN_PIPE)
    except OSError as error:
        print_note(f"the output cannot be written: {error.strerror or error}")
        _abandon(sys.stdout)
        raise UnwritableError(_EXIT_FAILED) from error


def _abandon(stream: TextIO) -> None:
    """Have what still lies in the buffer go nowhere, so that the interpreter's end does not complain of it once more."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def shown(value: object) -> str:
    """A value for a terminal, on one line."""
    text = str(value)
    return text if text.isprintable() else "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def as_dict(message: "Message") -> dict[str, Any]:
    """A message as JSON-ready values: fields as in the .proto files, all of them, enums and times as text, int64 as numbers."""
    from google.protobuf.json_format import MessageToDict

    data: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    numbers: dict[str, Any] = _numbers(message, data)
    return numbers


def _numbers(message: "Message", data: dict[str, Any]) -> dict[str, Any]:
    """Protobuf's JSON has int64 as text, for JavaScript; here they are numbers."""
    for field in message.DESCRIPTOR.fields:
        if field.name not in data:
            continue
        value = data[field.name]
        if field.cpp_type == field.CPPTYPE_INT64:
            data[field.name] = [int(item) for item in value] if isinstance(value, list) else int(value)
        elif isinstance(value, dict) and field.message_type is not None and not field.message_type.GetOptions().map_entry:
            _numbers(getattr(message, field.name), value)
        elif isinstance(value, list) and field.message_type is not None:
            for item, part in zip(getattr(message, field.name), value, strict=True):
                if isinstance(part, dict):
                    _numbers(item, part)
    return data


def print_json(value: Any) -> None:
    """One JSON document, indented; in ASCII where standard output is not UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    write_text(json.dumps(value, indent=2, ensure_ascii=codecs.lookup(encoding).name != "utf-8") + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers stand on the right. No row is no table."""
    from rich.console import Console
    from rich.table import Table

    lines = [[shown(cell) for cell in row] for row in rows]
    if not lines:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = all(line[index].replace(".", "", 1).split(" ")[0].isdigit() for line in lines)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    drawn = io.StringIO()
    Console(file=drawn, width=_WIDE, highlight=False, markup=False).print(table)
    write_text("".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines()))


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one pair on each line."""
    pairs = [(name, shown(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    write_text("".join(f"{name:<{width}}  {value}\n" for name, value in pairs))


def word(name: str, prefix: str) -> str:
    """The word of an enum's value: CAUSE_PEER_RESET is peer_reset; ``-`` for unspecified."""
    text = name.removeprefix(prefix).lower()
    return "-" if text == "unspecified" else text


def size_text(size: int) -> str:
    """Bytes as people read them: ``100 MiB``, ``1.5 KiB``, ``17 B``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def age_text(seconds: float) -> str:
    """A length of time in its two largest units: ``0s``, ``12s``, ``1h 5m``, ``3d 2h``; below zero it is none."""
    left = max(0, int(seconds))
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count) or "0s"


def time_text(text: str | None) -> str:
    """A moment of protobuf's JSON, to the second; ``-`` for none."""
    return "-" if not text else text.split(".")[0].removesuffix("Z").replace("T", " ") + " UTC"
