"""Tables for people, JSON for programs; both on standard output."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

__all__ = ["as_dict", "print_fields", "print_json", "print_table", "size_text", "time_text", "word"]


def as_dict(message: Message) -> dict[str, Any]:
    """A message as JSON-ready values: fields as in the .proto files, all of them, enums and times as text, int64 as numbers."""
    data: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    numbers: dict[str, Any] = _numbers(message, data)
    return numbers


def _numbers(message: Message, data: dict[str, Any]) -> dict[str, Any]:
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
    """One JSON document, indented."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table that is as wide as its content when standard output is no terminal; numbers stand on the right."""
    from rich.console import Console
    from rich.table import Table

    lines = [[str(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(lines) and all(line[index].replace(".", "", 1).split(" ")[0].isdigit() for line in lines)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=index == 0, overflow="fold")
    for line in lines:
        table.add_row(*line)
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one pair on each line."""
    pairs = [(name, str(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        sys.stdout.write(f"{name:<{width}}  {value}\n")


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


def time_text(text: str | None) -> str:
    """A moment of protobuf's JSON, to the second; ``-`` for none."""
    return "-" if not text else text.split(".")[0].removesuffix("Z").replace("T", " ") + " UTC"
