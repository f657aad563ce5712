"""The framings as their formats are written down, by Python's own integers: what the compiled ones are held against."""

from collections.abc import Callable


def varint(size: int) -> bytes:
    out = b""
    while size > 127:
        out += bytes([size % 128 + 128])
        size //= 128
    return out + bytes([size])


MODELS: dict[str, Callable[[bytes], bytes]] = {
    "int32": lambda body: len(body).to_bytes(4, "big") + body,
    "uint32_le": lambda body: len(body).to_bytes(4, "little") + body,
    "int16": lambda body: len(body).to_bytes(2, "big") + body,
    "varint": lambda body: varint(len(body)) + body,
    "int32_inclusive": lambda body: (len(body) + 4).to_bytes(4, "big") + body,
    "grpc_message": lambda body: b"\0" + len(body).to_bytes(4, "big") + body,
    "mysql_packet": lambda body: len(body).to_bytes(3, "little") + b"\0" + body,
    "lines": lambda body: body + b"\n",
    "lines_crlf": lambda body: body + b"\r\n",
}


def stream(name: str, bodies: list[bytes]) -> bytes:
    """Frames back to back."""
    return b"".join(map(MODELS[name], bodies))
