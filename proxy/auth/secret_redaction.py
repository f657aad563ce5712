"""Removes secrets from a server's error text before it is logged: a server may repeat the credentials of a login that it refuses.

Secrets are found as they are, in part, in any case, and in base64, hexadecimal, percent encoding or JSON escapes. A server can hide a
secret in other encodings; that is not detected.
"""

import base64
import json
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Final

MIN_MATCH: Final = 6  # so many successive characters of a secret are a match; of a shorter secret, all of them
REDACTED: Final = "its words hold a secret, and are left out"


def redacted(words: str, secrets: Iterable[bytes]) -> str:
    """The words, or ``REDACTED`` if they contain one of the secrets (text in UTF-8, or keys)."""
    return REDACTED if any(contains_secret(words, secret) for secret in secrets) else words


def contains_secret(words: str, secret: bytes) -> bool:
    """Whether words contain a part of a secret."""
    text, plain = words.casefold(), secret.decode(errors="replace")
    if len(plain) < MIN_MATCH:
        return bool(plain) and plain.casefold() in text
    folded = [form.casefold() for form in _forms(secret, plain)]
    runs = [text[start : start + MIN_MATCH] for start in range(len(text) - MIN_MATCH + 1)]
    return any(run in form for form in folded for run in runs)


def _forms(secret: bytes, text: str) -> Iterator[str]:
    yield text
    yield json.dumps(text)[1:-1]
    yield urllib.parse.quote_from_bytes(secret, safe="")
    yield "".join(f"%{byte:02x}" for byte in secret)
    yield secret.hex()
    for before in range(3):  # the secret may begin at any byte of the encoded text
        encoded = base64.b64encode(bytes(before) + secret)[-(-before * 8 // 6) :].rstrip(b"=")
        known = (encoded[:-1] if (before + len(secret)) % 3 else encoded).decode()  # the last character also depends on the following byte
        yield known
        yield known.translate({ord("+"): "-", ord("/"): "_"})
