"""framegate.proxy.auth.secret_redaction: a secret is found in somebody's words, whole, in part and as it is usually written."""

import base64
import json
import os
import urllib.parse

from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.secret_redaction import MIN_MATCH, REDACTED, contains_secret, redacted
from tests.fakes.cases import each_of

SECRET = 'canary+Pä"ss/7f3a9c?'
KAFKAS = "Authentication failed: Invalid username or password"
UTF8 = SECRET.encode()


@each_of(
    "written",
    [
        SECRET,
        SECRET.upper(),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        urllib.parse.quote(SECRET),
        urllib.parse.quote_plus(SECRET),
        "".join(f"%{byte:02X}" for byte in UTF8),
        UTF8.hex(),
        UTF8.hex().upper(),
        base64.b64encode(UTF8).decode(),
        base64.urlsafe_b64encode(UTF8).decode(),
    ],
)
def test_it_is_found_however_it_is_written(written: str) -> None:
    assert contains_secret(f"the password '{written}' is wrong", UTF8)


@given(st.binary(max_size=7), st.binary(max_size=7), st.binary(min_size=9, max_size=40), st.booleans())
def test_it_is_found_wherever_it_stands_in_base64(before: bytes, behind: bytes, secret: bytes, url: bool) -> None:
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    assert contains_secret(f"<{encode(before + secret + behind).decode()}>", secret)


@each_of(("length", "found"), [(MIN_MATCH - 1, False), (MIN_MATCH, True), (MIN_MATCH + 1, True)])
@each_of("start", [0, 3])
def test_a_part_of_a_secret_is_found(length: int, found: bool, start: int) -> None:
    assert contains_secret(f"<{SECRET[start : start + length]}>", UTF8) == found


@each_of(("secret", "words", "found"), [("", "x", False), ("x1", "x2", False), ("x1", "<X1>", True), ("12345", "1234 5", False)])
def test_a_short_secret_is_found_as_a_whole_only(secret: str, words: str, found: bool) -> None:
    assert contains_secret(words, secret.encode()) == found


def test_other_words_stay_as_they_are() -> None:
    secrets = [os.urandom(64) for _ in range(10)] + [os.urandom(32).hex().encode()]
    assert redacted(KAFKAS, secrets) == KAFKAS
    assert redacted(KAFKAS, ()) == KAFKAS
    assert redacted(f"{KAFKAS} {secrets[3].hex()}", secrets) == REDACTED
