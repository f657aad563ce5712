"""Secrets that a test can look for: each of one place, made when the test runs, and found in whatever form it may be written."""

import base64
import json
import secrets
from collections.abc import Iterator

_LEAST = 12  # bytes of a secret that must be there to be told from others
_PIECE = 16


class Canaries:
    """The secrets of a test, each under the name of the place where it is used."""

    def __init__(self) -> None:
        self._cores: dict[str, bytes] = {}

    def text(self, place: str) -> str:
        """A password: with letters that JSON, URLs, quotes and SCRAM write in their own way."""
        core = self._new(place)
        return f'Pä"s%s\\,={core}'

    def word(self, place: str) -> str:
        """A secret for places where only letters and digits may stand."""
        return self._new(place)

    def _new(self, place: str) -> str:
        if place in self._cores:
            return self._cores[place].decode()
        core = f"cnry{secrets.token_hex(12)}"
        self.keep(place, core)
        return core

    def keep(self, place: str, secret: str | bytes) -> None:
        """Look for a secret that was made elsewhere: a key, a part of a token."""
        core = secret.encode() if isinstance(secret, str) else secret
        assert len(core) >= _LEAST, f"{place} is too short to be told from others"
        assert place not in self._cores, f"{place} is taken"
        self._cores[place] = core

    def found(self, data: bytes | str) -> list[str]:
        """The places whose secrets stand in the data, in some form."""
        where = data.encode(errors="surrogateescape") if isinstance(data, str) else data
        forms = {place: [form for piece in _pieces(core) for form in _forms(piece)] for place, core in self._cores.items()}
        return [place for place, written in forms.items() if any(form in where for form in written)]


def _pieces(core: bytes) -> list[bytes]:
    """The parts of a secret that are looked for: a part of a long one must not be found either."""
    return [core[start : start + _PIECE] for start in range(0, len(core) - _LEAST + 1, _PIECE)]


def _forms(core: bytes) -> Iterator[bytes]:
    yield core
    yield core.hex().encode()
    yield core.hex().upper().encode()
    yield b"".join(b"%%%02x" % byte for byte in core)
    yield b"".join(b"%%%02X" % byte for byte in core)
    yield core.decode("latin-1").encode("utf-16-le")
    yield repr(core)[2:-1].encode()
    yield ", ".join(map(str, core)).encode()
    for ascii_only in (False, True):
        yield json.dumps(core.decode("latin-1"), ensure_ascii=ascii_only)[1:-1].encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + core).rstrip(b"=")
        known = encoded[(0, 2, 3)[before] : len(encoded) - (1 if (before + len(core)) % 3 else 0)]
        yield known
        yield known.translate(bytes.maketrans(b"+/", b"-_"))
