"""What a Kafka client says of itself in its first request: its client id and, in ApiVersions from version 3 on, its software and the version."""

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from framegate.proxy.kafka.values import varint_at

MAX_TEXT: Final = 256  # Characters that are kept of each text
_API_VERSIONS: Final = 18
_NAMES_SOFTWARE: Final = 3  # the first version of ApiVersions that names it
_CLIENT_ID: Final = 8  # the position of the client id in a request, behind API key, version and correlation id


class Client:
    """The texts; empty: not known."""

    def __init__(self, client_id: str = "", software: str = "", version: str = "") -> None:
        self.client_id: Final = client_id
        self.software: Final = software
        self.version: Final = version


def client_of(request: bytes) -> Client:
    """Read the first request of a connection, without its size; it may be cut short, or be no Kafka request."""
    texts = [""] * 3
    try:
        size = i64(read_i16_be(request, _CLIENT_ID))
        pos = _CLIENT_ID + 2 + max(size, 0)
        if pos > len(request):
            return Client()
        texts[0] = _text(request, _CLIENT_ID + 2, pos)
        if read_i16_be(request, 0) == _API_VERSIONS and read_i16_be(request, 2) >= _NAMES_SOFTWARE:
            tags, pos = varint_at(request, pos)
            while tags > 0:
                _, pos = varint_at(request, pos)
                size, pos = varint_at(request, pos)
                pos += size
                tags -= 1
            for index in (1, 2):
                size, pos = varint_at(request, pos)
                end = pos + size - 1
                if size == 0 or end > len(request):
                    break
                texts[index] = _text(request, pos, end)
                pos = end
    except IndexError:  # it is cut short
        pass
    return Client(texts[0], texts[1], texts[2])


def _text(data: bytes, start: i64, end: i64) -> str:
    return data[start:end].decode(errors="replace")[:MAX_TEXT]
