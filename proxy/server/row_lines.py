"""Rows of connections on their way from a processor to control: lines of the notices ``opened``, ``access`` and ``closed``. Behind two numbers a line
holds the row as the log prints it: nobody encodes it twice, and nobody decodes it who does not want to know what is in it.
A processor writes the lines (``pair_rows``).
"""

import json
from typing import Any, Final

from proxy.server.link import LinkError
from proxy.server.rows import AccessRow, ClosedRow, OpenedRow
from proxy.server.shape import shape_of

__all__ = ["decode_row", "is_due", "split_line"]

_SHAPES: Final = {"opened": shape_of(OpenedRow), "access": shape_of(AccessRow), "closed": shape_of(ClosedRow)}
_from_json: Final = json.JSONDecoder().raw_decode
_SPACE: Final = " "
_SPREAD: Final = 2_654_435_761
"""Knuth's: the odd number next to 2^32 divided by the golden ratio."""


def split_line(event: str, line: str) -> tuple[int, int, str]:
    """What a line of the notice ``event`` consists of: when the connection was accepted, which names it to control, its id, and the row as the log
    prints it, where the id is text. Raises LinkError: it is none.
    """
    try:
        accepted_ns, number, text = line.split(_SPACE, 2)
        found = (int(accepted_ns), int(number), text)
    except ValueError as error:
        raise LinkError(f"the {event} row cannot be read: {error}") from error
    if not text.startswith('{"') or not text.endswith("}"):
        raise LinkError(f"the {event} row cannot be read: {text!r:.100} is no object")
    return found


def decode_row(event: str, number: int, text: str) -> dict[str, Any]:
    """The row of a line, where the id is a number: an ``OpenedRow``, ``AccessRow`` or ``ClosedRow``, as the event says.

    Raises:
        LinkError: it cannot be read; of a row that has not the shape, the error names the key.
    """
    try:
        row, end = _from_json(text)
    except (RecursionError, ValueError) as error:
        raise LinkError(f"the {event} row cannot be read: {error}") from error
    if type(row) is not dict or end != len(text):
        raise LinkError(f"the {event} row cannot be read: {text!r:.100} is no object, or has something behind it")
    row["id"] = number
    fault = _SHAPES[event].fault(row)
    if fault:
        raise LinkError(f"the {event} row cannot be read: {event}{fault}")
    return row


def is_due(opened_ns: int, number: int, every_ns: int, since_ns: int, until_ns: int) -> bool:
    """Whether the moment of a row ``access`` of the connection of that id, opened at that time, lies behind ``since_ns`` and not behind ``until_ns``:
    the first is one ``every_ns`` after it was opened and up to a quarter more, the others each ``every_ns``. The quarter is spread by a hash of the
    id: many that came together do not have their rows together.
    """
    first_ns = opened_ns + ((number * _SPREAD & 0xFFFF_FFFF) * (every_ns // 4) >> 32)
    turns = (until_ns - first_ns) // every_ns
    return turns >= 1 and turns > (since_ns - first_ns) // every_ns
