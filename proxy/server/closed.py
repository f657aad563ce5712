"""The closed row on its way from a processor to control: a line of the notice ``closed``, which holds the row as the log prints it, so that
nobody encodes it twice.
"""

import json
from typing import Any, Final, cast

from proxy.network.connection_id import format_connection_id
from proxy.server.link import LinkError
from proxy.server.rows import ClosedRow
from proxy.server.shape import shape_of

__all__ = ["decode_closed", "encode_closed"]

_SHAPE: Final = shape_of(ClosedRow)
_to_log: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode
"""Made once: ``json.dumps`` with arguments makes an encoder for each call."""
_from_json: Final = json.JSONDecoder().raw_decode


def encode_closed(row: ClosedRow, accepted_ns: int) -> str:
    """A closed row as a line: when the connection was accepted (which names it to control), its id, and the row as the log prints it, where the id
    is text. The row is used up.
    """
    number = row["id"]
    cast(dict[str, Any], row)["id"] = format_connection_id(number)
    return f"{accepted_ns} {number} {_to_log(row)}"


def decode_closed(line: str) -> tuple[int, str, ClosedRow]:
    """The inverse of ``encode_closed``: when it was accepted, the row as the log prints it, and as an object, where the id is a number.

    Raises:
        LinkError: anything else; of a row that has not the shape, the error names the key.
    """
    try:
        accepted_ns, number, text = line.split(" ", 2)
        row, _ = _from_json(text)
        row["id"] = int(number)
        accepted = int(accepted_ns)
    except (TypeError, ValueError) as error:
        raise LinkError(f"a closed row cannot be read: {error}") from error
    fault = _SHAPE.fault(row)
    if fault:
        raise LinkError(f"a closed row cannot be read: closed{fault}")
    return accepted, text, cast(ClosedRow, row)
