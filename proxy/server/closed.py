"""The closed row on its way from a processor to control: a line of the notice ``closed``. Behind two numbers it holds the row as the log prints
it: nobody encodes it twice, and nobody decodes it who does not want to know what is in it.
A processor writes the lines (``pair_rows``).
"""

import json
from typing import Final, cast

from proxy.server.link import LinkError
from proxy.server.rows import ClosedRow
from proxy.server.shape import shape_of

__all__ = ["decode_closed", "split_closed"]

_SHAPE: Final = shape_of(ClosedRow)
_from_json: Final = json.JSONDecoder().raw_decode
_SPACE: Final = " "


def split_closed(line: str) -> tuple[int, int, str]:
    """What a line consists of: when the connection was accepted, which names it to control, its id, and the row as the log prints it, where the id is
    text. Raises LinkError: it is none.
    """
    try:
        accepted_ns, number, text = line.split(_SPACE, 2)
        found = (int(accepted_ns), int(number), text)
    except ValueError as error:
        raise LinkError(f"a closed row cannot be read: {error}") from error
    if not text.startswith('{"') or not text.endswith("}"):
        raise LinkError(f"a closed row cannot be read: {text!r:.100} is no object")
    return found


def decode_closed(number: int, text: str) -> ClosedRow:
    """The row of a line, where the id is a number.

    Raises:
        LinkError: it cannot be read; of a row that has not the shape, the error names the key.
    """
    try:
        row, end = _from_json(text)
    except (RecursionError, ValueError) as error:
        raise LinkError(f"a closed row cannot be read: {error}") from error
    if type(row) is not dict or end != len(text):
        raise LinkError(f"a closed row cannot be read: {text!r:.100} is no object, or has something behind it")
    row["id"] = number
    fault = _SHAPE.fault(row)
    if fault:
        raise LinkError(f"a closed row cannot be read: closed{fault}")
    return cast(ClosedRow, row)
