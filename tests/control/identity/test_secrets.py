"""control.identity.secrets: read each time, and never said."""

from pathlib import Path

import pytest

from control.identity.secrets import MAX_SECRET, SecretError, Secrets


def test_the_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secrets = Secrets({"brokers": str(path)})
    for text, secret in (("one\n", "one"), ("two", "two"), ("three\r\n", "three"), (" a b ", " a b ")):
        path.write_text(text, newline="")
        assert secrets.read("brokers") == secret


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no secret in one line"),
        (b"\n", "no secret in one line"),
        (b"canary\ncanary\n", "no secret in one line"),
        (b"canary\0", "no secret in one line"),
        (b"canary\xff", "not UTF-8"),
        (b"c" * (MAX_SECRET + 1), "more than"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_secret(tmp_path: Path, data: bytes | None, words: str) -> None:
    path = tmp_path.parent / f"token-{words[:3]}-{len(data or b'')}"
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(SecretError, match=words) as caught:
        Secrets({"brokers": str(path)}).read("brokers")
    assert "canary" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_credential_that_nobody_configured() -> None:
    with pytest.raises(SecretError, match="no credential 'brokers'"):
        Secrets({}).read("brokers")
