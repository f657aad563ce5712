"""The framings that a configuration may name."""

from typing import Final

from framegate.proxy.config.model import HeaderConfig
from framegate.proxy.network.fixed_header import FixedHeaderFraming
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.lines import LINES, LINES_CRLF
from framegate.proxy.network.varint import VARINT

__all__ = ["FRAMINGS", "framing_of"]

FRAMINGS: Final[dict[str, Framing]] = {
    framing.name: framing
    for framing in (
        INT32,
        FixedHeaderFraming("uint32_le", header=4, little=True),
        FixedHeaderFraming("int16", header=2, width=2, signed=True),
        VARINT,
        FixedHeaderFraming("int32_inclusive", header=4, signed=True, extra=4),
        FixedHeaderFraming("grpc_message", header=5, offset=1),
        FixedHeaderFraming("mysql_packet", header=4, width=3, little=True),
        LINES,
        LINES_CRLF,
    )
}
"""By name; but for ``header``, which is made of its own keys."""


def framing_of(name: str, header: HeaderConfig | None, made: dict[HeaderConfig, Framing]) -> Framing:
    """What a side speaks.

    Args:
        name: as the configuration has it.
        header: of ``header``.
        made: gets the framings with headers of their own: two sides with the same one speak the same.
    """
    if header is None:
        return FRAMINGS[name]
    framing = made.get(header)
    if framing is None:
        behind = header.size - header.offset - header.width
        framing = made[header] = FixedHeaderFraming(
            name,
            header=header.size,
            offset=header.offset,
            width=header.width,
            little=header.byte_order == "little",
            extra={"body": 0, "rest": behind, "frame": header.size}[header.counts],
            fill=bytes.fromhex(header.fill),
            keeps=header.other_bytes == "keep",
        )
    return framing
