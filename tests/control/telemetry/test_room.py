"""How much may wait."""

import threading

import pytest

from framegate.control.telemetry.room import Room


@pytest.mark.parametrize(("asked", "taken"), [(2, 2), (3, 3), (4, 3)])
def test_what_finds_no_room_is_counted(asked: int, taken: int) -> None:
    dropped: list[int] = []
    room = Room(3, dropped.append)
    assert (room.take(asked), room.used, sum(dropped)) == (taken, taken, asked - taken)


def test_what_was_given_back_can_be_taken_again() -> None:
    dropped: list[int] = []
    room = Room(1, dropped.append)
    assert [room.take(), room.take()] == [1, 0]
    room.free(1)
    assert room.take() == 1
    assert dropped == [1]


def test_threads_count_together() -> None:
    lost: list[int] = []
    room = Room(1_000, lost.append)
    threads = [threading.Thread(target=lambda: [room.take() for _ in range(400)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (room.used, sum(lost)) == (1_000, 600)
