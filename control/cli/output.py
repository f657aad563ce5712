"""Output of commands: tables or JSON on standard output, messages on standard error.

A table is as wide as its contents, on a terminal too: wrapped lines can be copied and searched, folded cells cannot. Control characters in text
from clients and operators (certificate names, reasons) are escaped.
"""

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from framegate.control.configuration.units import counted as counted
from framegate.control.configuration.units import first_of as first_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

EXIT_BROKEN_PIPE: Final = 141  # the exit code that shells give a program ended by SIGPIPE, as in ``ls | head``
_EXIT_FAILED: Final = 1
_WIDE: Final = 100_000


class UnwritableError(SystemExit):
    """Standard output cannot be written, and a message said why. Exits with 1; commands whose code 1 has another meaning catch it."""


def print_note(text: str) -> None:
    """Write one line to standard error, like ``write_error``."""
    write_error(f"framegate: {shown(text)}\n")


def write_error(text: str) -> None:
    """Write text to standard error. Failures are ignored; the exit code still tells the result."""
    if sys.stderr is None:
        return
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        _abandon(sys.stderr)


def print_line(text: str) -> None:
    """Write one line to standard output."""
    write_text(f"{shown(text)}\n")


def write_text(text: str) -> None:
    """Write text to standard output. Exits the process when the reader has closed the pipe, or the output cannot be written."""
    if sys.stdout is None:
        return  # standard output was closed before the start
    _written(lambda: sys.stdout.write(text))


def write_bytes(data: "bytes | memoryview") -> None:
    """Write bytes to standard output. Exits the process like ``write_text``."""
    if sys.stdout is None:
        return
    _written(lambda: sys.stdout.buffer.write(data))


def _written(write: Callable[[], object]) -> None:
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        exit_unwritten(error)


def exit_unwritten(error: OSError) -> NoReturn:
    """Exit the process because standard output could not be written."""
    if isinstance(error, BrokenPipeError):
        _abandon(sys.stdout)
        sys.exit(EXIT_BROKEN_PIPE)
    print_note(f"standard output cannot be written: {error.strerror or error}")
    _abandon(sys.stdout)
    raise UnwritableError(_EXIT_FAILED) from error


def _abandon(stream: TextIO) -> None:
    """Discard the buffer of a stream, so that the interpreter does not report the error again at exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def shown(value: object) -> str:
    """A value as one line of text, with control characters escaped."""
    text = str(value)
    return text if text.isprintable() else "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def as_dict(message: "Message") -> dict[str, Any]:
    """A message for JSON: all fields under their .proto names, enums and times as text, int64 as numbers."""
    from google.protobuf.json_format import MessageToDict

    data: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    numbers: dict[str, Any] = _numbers(message, data)
    return numbers


def _numbers(message: "Message", data: dict[str, Any]) -> dict[str, Any]:
    """Convert int64 to numbers; protobuf's JSON has them as text."""
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
    """Print one indented JSON document; in ASCII when standard output is not UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    write_text(json.dumps(value, indent=2, ensure_ascii=codecs.lookup(encoding).name != "utf-8") + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with numbers aligned right; nothing when there are no rows."""
    write_text(table_text(columns, rows))


def table_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The text of a table with numbers aligned right; empty when there are no rows."""
    from rich.console import Console
    from rich.table import Table

    lines = [[shown(cell) for cell in row] for row in rows]
    if not lines:
        return ""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = all(line[index].replace(".", "", 1).split(" ")[0].isdigit() for line in lines)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    drawn = io.StringIO()
    Console(file=drawn, width=_WIDE, highlight=False, markup=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())


def print_messages(messages: Collection[Any], output: str, columns: Sequence[str], cells: Callable[[Any], Sequence[Any]], none: str = "") -> None:
    """Print messages of the admin API: as a JSON list, or as a table with a row of ``cells`` for each; ``none``: the note if there are none."""
    if output == "json":
        print_json([as_dict(message) for message in messages])
    elif none and not messages:
        print_note(none)
    else:
        print_table(columns, map(cells, messages))


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair per line."""
    pairs = [(name, shown(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    write_text("".join(f"{name:<{width}}  {value}\n" for name, value in pairs))


def word(name: str, prefix: str) -> str:
    """An enum value without its prefix: CAUSE_PEER_RESET is peer_reset; ``-`` for unspecified."""
    text = name.removeprefix(prefix).lower()
    return "-" if text == "unspecified" else text


def field_word(message: "Message", name: str) -> str:
    """The value of a field that is an enum, without its prefix; ``-`` for unspecified."""
    return field_words(message, name)[0]


def field_words(message: "Message", name: str) -> list[str]:
    """The values of a field that is an enum, or a list of them."""
    field: Any = message.DESCRIPTOR.fields_by_name[name]
    enum, value = field.enum_type, getattr(message, name)
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return [word(enum.values_by_number[number].name, prefix) for number in (value if field.is_repeated else [value])]


def size_text(size: int) -> str:
    """A size for people: ``100 MiB``, ``1.5 KiB``, ``17 B``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def age_text(seconds: float) -> str:
    """A duration in its two largest units: ``0s``, ``12s``, ``1h 5m``, ``3d 2h``; negative ones are ``0s``."""
    left = max(0, int(seconds))
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count) or "0s"


def time_text(text: str | None) -> str:
    """A time from protobuf's JSON, to the second; ``-`` for none."""
    return "-" if not text else text.split(".")[0].removesuffix("Z").replace("T", " ") + " UTC"
