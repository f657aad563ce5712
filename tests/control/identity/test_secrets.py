"""framegate.control.identity.secrets: read each time, and never said."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from framegate.control.files import read_file
from framegate.control.identity.secrets import MAX_SECRET, SecretError, Secrets


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


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    secrets = Secrets({"pipe": str(tmp_path / "pipe"), "folder": str(tmp_path)})
    with pytest.raises(SecretError, match="it is no ordinary file"):
        secrets.read("pipe")
    with pytest.raises(SecretError, match=r"Is a directory|it is no ordinary file"):
        secrets.read("folder")


def test_a_file_that_does_not_come_is_waited_for_once_and_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that stands still, as a mount whose server is gone."""
    comes = threading.Event()
    asked: list[str] = []

    def hanging(path: str, most: int) -> bytes:
        asked.append(path)
        if path.endswith("far"):
            comes.wait()
        return read_file(path, most)

    monkeypatch.setattr("framegate.control.identity.secrets.read_file", hanging)
    monkeypatch.setattr("framegate.control.identity.secrets.PATIENCE_S", 0.05)
    for name in ("far", "near"):
        (tmp_path / name).write_text(name)
    secrets = Secrets({name: str(tmp_path / name) for name in ("far", "near")})
    for _ in range(3):
        with pytest.raises(SecretError, match=r"far cannot be read: it does not come within 0\.05 s"):
            secrets.read("far")
        assert secrets.read("near") == "near"
    assert asked.count(str(tmp_path / "far")) == 1
    comes.set()
    for thread in threading.enumerate():
        if thread.name == "framegate-secret":
            thread.join()
    assert secrets.read("far") == "far"


def test_many_at_once_get_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    secrets = Secrets({"brokers": str(tmp_path / "token")})
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(secrets.read, ["brokers"] * 400)) == {"one"}


def test_a_credential_that_nobody_configured() -> None:
    with pytest.raises(SecretError, match="no credential 'brokers'"):
        Secrets({}).read("brokers")
