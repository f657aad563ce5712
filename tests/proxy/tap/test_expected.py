"""What a tap directory should have by its ledger."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from framegate.proxy.tap.expected import LIVE_S, expected_end, expected_start, is_written, ledger_faults
from framegate.proxy.tap.ledger import Ledger, StreamRecord
from framegate.proxy.tap.record import LOCK_NAME
from tests.fakes.cases import each_of


@each_of(
    ("stream_record", "base", "start", "end"),
    [
        (None, 640, 640, None),
        (StreamRecord(1, 1, []), 0, 0, None),
        (StreamRecord(1, 1, []), 640, 0, None),
        (StreamRecord(1, 1, [], end=1280, deleted_to=640), 640, 640, 1280),
        (StreamRecord(1, 1, [], end=1280, deleted_to=640), 704, 640, 1280),
        (StreamRecord(1, 1, [], end=1280, deleted_to=640), 0, 0, 1280),
        (StreamRecord(1, 0, [], end=1280, settled=True, adopted=True), 640, 640, 1280),
    ],
)
def test_a_stream_is_there_from_what_retention_took_to_its_end(stream_record: StreamRecord | None, base: int, start: int, end: int | None) -> None:
    assert (expected_start(stream_record, base), expected_end(stream_record)) == (start, end)


def test_a_ledger_that_cannot_tell_all_says_why() -> None:
    assert list(ledger_faults(Ledger(True, 1, "", {}), [])) == []
    (gone,) = ledger_faults(Ledger(False, 0, "", {}), ["n.0.b"])
    assert gone.startswith("the ledger is missing, so it is not known whether streams were deleted (")
    found = list(ledger_faults(Ledger(True, 1, "line 1: bad", {}, lost="lines 2 to 3 were gone"), ["n.0.b"]))
    assert [fault.split(":")[0] for fault in found] == ["the ledger is damaged", "the ledger was lost"]
    (stranger,) = ledger_faults(Ledger(True, 1, "", {}), ["n.0.b"])
    assert stranger.startswith("n.0.b is not in the ledger")


def test_a_directory_is_written_while_its_lock_is_held_whatever_the_clocks_say(tmp_path: Path) -> None:
    assert not is_written(str(tmp_path))
    path = tmp_path / LOCK_NAME
    path.touch()
    assert not is_written(str(tmp_path)), "nobody holds it"
    with path.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for ahead_s in (0.0, 20.0, -20.0, 3600.0):
            os.utime(path, (time.time() - ahead_s,) * 2)
            assert is_written(str(tmp_path))


def test_where_the_lock_cannot_be_asked_a_sign_of_life_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / LOCK_NAME
    path.touch()

    def refused(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fcntl, "flock", refused)
    now = time.time()
    for ago_s, beats, written in (
        (LIVE_S - 1, False, True),
        (1 - LIVE_S, False, True),
        (LIVE_S + 5, False, False),
        (LIVE_S + 5, True, True),
        (-LIVE_S - 5, True, True),
        (-LIVE_S - 5, False, False),
    ):
        os.utime(path, (now - ago_s,) * 2)
        slept: list[float] = []

        def sleep(seconds: float, slept: list[float] = slept, beats: bool = beats, ago_s: float = ago_s) -> None:
            slept.append(seconds)
            if beats and len(slept) == 4:
                os.utime(path, (now - ago_s + 1,) * 2)

        assert is_written(str(tmp_path), sleep) is written
        assert sum(slept) <= 2.0
