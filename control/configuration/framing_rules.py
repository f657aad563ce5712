"""What a side speaks, and what that asks of the rest: a header of its own, whole frames, Kafka's own framing."""

from typing import Any

from control.configuration.document import Document, Path
from control.configuration.values import Values, default_of, given
from proxy.config.model import Forwarding, HeaderConfig, ListenerConfig, UpstreamConfig

__all__ = ["framing_rules"]


def framing_rules(document: Document, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> None:
    """Each side's framing, and what two that meet ask of each other."""
    for path, side in (*listeners, *upstreams):
        _header(document, path, side)
    spoken = {str(item.get("name")): _framing(item, UpstreamConfig) for _, item in upstreams}
    for path, listener in listeners:
        mine, other = _framing(listener, ListenerConfig), spoken.get(str(listener.get("upstream")))
        if listener.get("protocol") == "kafka":
            _kafka(document, path, mine, other)
        if listener.get("handler") is None and any(str(framing).startswith("lines") for framing in (mine, other)):
            _whole(document, path, listener)


def _framing(side: Values, model: type) -> Any:
    return side.get("framing", default_of(model, "framing"))


def _header(document: Document, path: Path, side: Values) -> None:
    header = side.get("header")
    if side.get("framing") != "header":
        if header is not None:
            document.warn((*path, "header"), "has no effect: framing is not header")
        return
    if header is None:
        document.add((*path, "framing"), "needs the key header, which says where in a header the size lies", "header")
        return
    size, offset, width = (header.get("size"), *(given(header, HeaderConfig, name, document, (*path, "header")) for name in ("offset", "width")))
    if not all(isinstance(number, int) for number in (size, offset, width)):
        return
    if offset + width > size:
        document.add((*path, "header", "width"), f"does not fit: {width} bytes from {offset} on, and the header has {size}", width)
        return
    fill = header.get("fill", "")
    try:
        count = len(bytes.fromhex(fill))
    except ValueError:
        document.add((*path, "header", "fill"), "is not hexadecimal, two digits for each byte", fill)
        return
    if fill and count != size - width:
        document.add((*path, "header", "fill"), f"has {count} bytes, and the header has {size - width} besides the integer", fill)


def _kafka(document: Document, path: Path, mine: Any, other: Any) -> None:
    if mine != "int32":
        document.add((*path, "framing"), "must be int32: protocol kafka has no other", mine)
    elif other not in (None, "int32"):
        document.add((*path, "upstream"), f"speaks {other}, and protocol kafka has no framing but int32")


def _whole(document: Document, path: Path, listener: Values) -> None:
    for direction in ("requests", "responses"):
        if given(listener.get("forwarding") or {}, Forwarding, direction, document, (*path, "forwarding")) == "cut_through":
            text = "must be whole: where one side speaks lines, a frame ends where its line does, so no part of it can go on before"
            document.add((*path, "forwarding", direction), text, "cut_through")
