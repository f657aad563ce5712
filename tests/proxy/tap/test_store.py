"""Objects below a URL. The rules hold for a folder here, and for an S3 server in ``tests/integration/test_ship.py``."""

import importlib.util
import os
import tempfile
from pathlib import Path

import pytest

from framegate.proxy.tap import store
from framegate.proxy.tap.store import (
    CHUNK,
    WHOLE,
    ConflictError,
    Copies,
    Store,
    StoreError,
    file_chunks,
    is_url,
    package_fault,
    place_of,
    store_at,
    url_fault,
)


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    return store_at(f"file://{tmp_path}/a%20b", create=True)


def put(where: Store, name: str, data: bytes) -> None:
    where.replace(name, (data[at : at + 1000_000] for at in range(0, len(data), 1000_000)), None)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("s3://bucket/a/b", ""),
        ("gs://bucket", ""),
        ("az://container/p", ""),
        ("file:///mnt/taps", ""),
        ("/mnt/taps", "must begin with s3://, gs://, az:// or file://"),
        ("http://bucket/a", "must begin with s3://, gs://, az:// or file://"),
        ("s3:bucket", "must begin with s3://, gs://, az:// or file://"),
        ("s3:///a", "needs a bucket or container"),
        ("file://host/a", "must be file:///, with an absolute path"),
        ("file:///", "must be file:///, with an absolute path"),
        ("s3://key:secret@bucket/a", "must have no user, query or fragment: credentials are taken from the environment"),
        ("az://c/a?sig=secret", "must have no user, query or fragment: credentials are taken from the environment"),
        ("s3://[bucket/a", "is no URL: Invalid IPv6 URL"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_before_any_request(url: str, fault: str) -> None:
    assert url_fault(url) == fault


def test_without_obstore_the_fault_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert (url_fault("s3://bucket"), package_fault()) == ("", "needs obstore, which is not installed: pip install 'framegate[ship]'")
    with pytest.raises(StoreError, match=r"framegate\[ship\]"):
        store_at("s3://bucket")


def test_objects_and_folders(folder: Store, tmp_path: Path) -> None:
    for name in ("n/s/2", "n/s/1", "n/s/3", "m/x"):
        put(folder, name, name.encode())
    assert folder.folders() == ["m", "n"]
    assert [(item.name, item.size) for item in folder.items("n/s")] == [("1", 5), ("2", 5), ("3", 5)]
    assert [item.name for item in folder.items("n/s", "1")] == ["2", "3"]
    assert folder.items("nothing") == []
    assert folder.read("n/s/2")[0] == b"n/s/2"
    assert b"".join(folder.chunks("n/s/2")[0]) == b"n/s/2"
    assert (tmp_path / "a b/n/s/2").read_bytes() == b"n/s/2"
    for call in (lambda: folder.read("no"), lambda: folder.chunks("no")):
        with pytest.raises(FileNotFoundError):
            call()


@pytest.mark.parametrize("size", [0, 1, WHOLE, WHOLE + 1])
def test_an_object_is_what_was_written(folder: Store, size: int) -> None:
    data = os.urandom(size)
    put(folder, "x", data)
    assert b"".join(folder.chunks("x")[0]) == data


def test_an_object_is_created_once_and_replaced_only_if_it_is_the_known_one(folder: Store) -> None:
    put(folder, "x", b"1")
    _, version = folder.read("x")
    assert folder.chunks("x")[1] == folder.size("x")[1] == version
    newer = folder.replace("x", [b"4", b"4"], version)
    for stale in (version, None):
        with pytest.raises(ConflictError):
            folder.replace("x", [b"5"], stale)
    assert folder.replace("x", [b"666"], newer)
    assert folder.read("x")[0] == b"666"


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1])
def test_the_chunks_of_a_file_are_its_bytes(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert b"".join(file_chunks(str(tmp_path / "file"))) == data


def test_a_store_that_cannot_be_used_is_an_oserror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="Unable to canonicalize"):
        store_at(f"file://{tmp_path}/no").read("x")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="Account must be specified"):
        store_at("az://container/x").read("x")


def test_messages_have_no_credentials() -> None:
    said = "Generic S3 error: GET https://b.example/x?X-Amz-Signature=deadbeef (403): <Error><AWSAccessKeyId>AKIA</AWSAccessKeyId>\nDebug source: key"
    assert store._clean(ValueError(said)) == "Generic S3 error: GET https://b.example/x?… (403)"
    assert store._clean(ValueError("PUT http://s/b in 56.8µs, after 2 retries")) == "PUT http://s/b, after 2 retries"
    assert store._clean(ValueError("")) == "ValueError"


def test_without_a_folder_for_copies_a_segment_is_not_called_absent(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, "s/0.seg", b"0")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(StoreError, match="TMPDIR") as caught:
        Copies().open(f"{folder.root}/s/0.seg")
    assert not isinstance(caught.value, FileNotFoundError)


def test_copies_are_made_once_and_the_ones_used_longest_ago_are_deleted(folder: Store) -> None:
    for name in "abc":
        put(folder, f"s/{name}", name.encode() * 10)
    copies = Copies(most=20)

    def read(name: str) -> bytes:
        descriptor = copies.open(f"{folder.root}/s/{name}")
        try:
            return os.read(descriptor, 100)
        finally:
            os.close(descriptor)

    assert [read(name) for name in "aba"] == [b"a" * 10, b"b" * 10, b"a" * 10]
    for name in "abc":
        folder.replace(f"s/{name}", [b"-"], folder.size(f"s/{name}")[1])
    assert [read(name) for name in "ab"] == [b"a" * 10, b"b" * 10], "segments never change"
    assert [read(name) for name in "cb"] == [b"-", b"b" * 10]
    assert read("a") == b"-", "c and b were used later"
    copies.forget(folder.root)
    assert read("b") == b"-"
    with pytest.raises(FileNotFoundError):
        copies.open(f"{folder.root}/s/none")


def test_places() -> None:
    assert place_of("s3://b/p/node/stream/0.seg") == ("s3://b/p/node", "stream/0.seg")
    assert (is_url("s3://b"), is_url("var/tap")) == (True, False)
