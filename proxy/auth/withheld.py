"""Somebody else's words in a line of ours, unless they say again what was a secret of ours: a server may tell, of a login that it refuses, what it
was tried with.

Found is a secret as it is, in part, in other letters' case, and as base64, hexadecimal, in percent signs or escaped as JSON has it. Who has the
secret and wants to hide it in its words can; then it is not our log that tells.
"""

import base64
import json
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["LEAST", "WITHHELD", "holds", "without"]

LEAST: Final = 6
"""Characters of a secret in a row that are too many; of a shorter one all of them."""
WITHHELD: Final = "its words hold a secret, and are left out"


def without(words: str, secrets: Iterable[bytes]) -> str:
    """The words, or that they are left out. ``secrets``: text in UTF-8, or keys."""
    return WITHHELD if any(holds(words, secret) for secret in secrets) else words


def holds(words: str, secret: bytes) -> bool:
    """Whether words have some of a secret in them."""
    text, plain = words.casefold(), secret.decode(errors="replace")
    if len(plain) < LEAST:
        return bool(plain) and plain.casefold() in text
    folded = [form.casefold() for form in _forms(secret, plain)]
    runs = [text[start : start + LEAST] for start in range(len(text) - LEAST + 1)]
    return any(run in form for form in folded for run in runs)


def _forms(secret: bytes, text: str) -> Iterator[str]:
    """As what it may be written."""
    yield text
    yield json.dumps(text)[1:-1]
    yield urllib.parse.quote_from_bytes(secret, safe="")
    yield "".join(f"%{byte:02x}" for byte in secret)
    yield secret.hex()
    for before in range(3):  # it may stand anywhere in what was encoded
        encoded = base64.b64encode(bytes(before) + secret)[-(-before * 8 // 6) :].rstrip(b"=")
        known = (encoded[:-1] if (before + len(secret)) % 3 else encoded).decode()  # the last letter says something of what comes behind
        yield known
        yield known.translate({ord("+"): "-", ord("/"): "_"})
