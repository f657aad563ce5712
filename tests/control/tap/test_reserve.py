import errno
import os
from pathlib import Path

import pytest

from framegate.control.tap.reserve import PIECE_BYTES, RESERVE_BYTES, RESERVE_NAME, Reserve, is_full


def held(directory: Path) -> int:
    return (directory / RESERVE_NAME).stat().st_blocks * 512


def test_room_is_held_and_found_again_by_the_next(tmp_path: Path) -> None:
    reserve = Reserve(str(tmp_path))
    reserve.take()
    assert held(tmp_path) >= reserve.size == RESERVE_BYTES
    assert (tmp_path / RESERVE_NAME).stat().st_mode & 0o777 == 0o600
    again = Reserve(str(tmp_path))
    again.take()
    assert again.size == RESERVE_BYTES


def test_half_is_kept_for_the_end(tmp_path: Path) -> None:
    reserve = Reserve(str(tmp_path))
    assert not reserve.give(all_of_it=True), "what was never taken cannot be given"
    reserve.take()
    pieces = 0
    while reserve.give(all_of_it=False):
        pieces += 1
    assert pieces * PIECE_BYTES == RESERVE_BYTES // 2 == reserve.size
    assert held(tmp_path) <= RESERVE_BYTES // 2
    while reserve.give(all_of_it=True):
        pieces += 1
    assert pieces * PIECE_BYTES == RESERVE_BYTES
    assert held(tmp_path) == reserve.size == 0
    reserve.take()
    assert held(tmp_path) >= reserve.size == RESERVE_BYTES


@pytest.mark.parametrize("way", ["little room", "refused"])
def test_what_cannot_be_had_is_said_and_what_was_held_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    reserve = Reserve(str(tmp_path))
    reserve.take()
    reserve.give(all_of_it=False)
    before = reserve.size

    def full(fd: int, offset: int, length: int) -> None:
        os.ftruncate(fd, before + 4096)  # as far as it went
        raise OSError(errno.ENOSPC, "No space left on device")

    def little(fd: int) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 1000, 300, 300, 9, 9, 9, 0, 255))

    monkeypatch.setattr(os, *(("fstatvfs", little) if way == "little room" else ("posix_fallocate", full)))
    with pytest.raises(OSError, match=r"too little room|No space") as caught:
        reserve.take()
    assert is_full(caught.value)
    assert reserve.size == before == (tmp_path / RESERVE_NAME).stat().st_size
    monkeypatch.undo()
    reserve.take()
    assert reserve.size == RESERVE_BYTES
