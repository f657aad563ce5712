"""Where the tables are."""

from pathlib import Path

import pytest

from framegate.proxy.pipeline.place import absolute, local_path, one_line, place_of
from framegate.proxy.tap.store import ConflictError, StoreError
from tests.fakes.outputs import Output
from tests.fakes.s3 import S3


def test_a_place_is_a_folder_or_a_url_and_its_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [absolute(place) for place in ("out", Path("out"), f"file://{tmp_path}/out", f"file:{tmp_path}/out")] == [str(tmp_path / "out")] * 4
    assert absolute("s3://bucket/tables/") == "s3://bucket/tables"
    assert local_path(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert (local_path("file://host/x"), local_path("s3://bucket/x")) == (None, None)
    assert place_of("s3://bucket/tables/").address("frames") == "s3://bucket/tables/frames"
    error = OSError("Generic S3 error\n  \x1b[31m↳\x1b[0m GET https://host/x?X-Amz-Signature=secret failed")
    assert one_line(error) == "Generic S3 error GET https://host/x?… failed"
    assert (
        one_line(OSError('Object at x not found: 404 Not Found:\n<?xml version="1.0"?>\n<Error>…</Error>')) == "Object at x not found: 404 Not Found"
    )


def test_a_file_is_there_when_its_block_has_ended_and_is_created_once_and_removed(output: Output) -> None:
    place = place_of(output)
    assert place.names("a") == []
    with place.new_file("a/1") as file:
        file.write(b"one")
    with place.new_file("a/large") as file:  # sent in parts
        for _ in range(9):
            file.write(bytes(1 << 20))
    place.create("a/2", b"new")
    with pytest.raises(ConflictError):
        place.create("a/2", b"two")
    assert place.names("a") == ["1", "2", "large"]
    assert (place.read("a/1"), place.read("a/2"), len(place.read("a/large"))) == (b"one", b"new", 9 << 20)
    for _ in range(2):
        place.remove("a/1")
    place.sync_folders(["a/2"])
    assert place.names("a") == ["2", "large"]


@pytest.mark.parametrize("kept", [0, 1, 29])
def test_a_store_that_takes_a_body_cut_off_gets_it_once_more_and_then_it_is_an_error(s3: S3, kept: int) -> None:
    place, whole = place_of(f"{s3.url}/tables"), bytes(range(30))

    def file(name: str) -> None:
        with place.new_file(name) as file:
            file.write(whole)

    for number, write in enumerate((file, lambda name: place.create(name, whole))):
        for times, taken in ((1, True), (9, False)):
            name, left = f"a/{number}.{times}", [kept] * times
            s3.fault = lambda method, path, left=left: left.pop() if method == "PUT" and left else None  # type: ignore[misc]
            if taken:
                write(name)
                assert place.read(name) == whole
            else:
                with pytest.raises(StoreError, match=rf"{name} is not what was sent: it should have 30 bytes"):
                    write(name)
