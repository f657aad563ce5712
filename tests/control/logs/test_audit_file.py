"""framegate.control.logs.audit_file: whole lines in order, on files that are renamed and disks that are full."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from framegate.control.logs import AuditFile, audit_line
from framegate.control.logs.audit_file import MAX_WAITING, ROOM
from tests.fakes.small_disk import fill, tiny_disk


class Made:
    def __init__(self, path: Path) -> None:
        self.changes: list[str] = []
        self.unwritten = 0
        self.path = path
        self.file = AuditFile(str(path), lambda error: self.changes.append("" if error is None else str(error.strerror)), self._count)

    def _count(self) -> None:
        self.unwritten += 1

    def numbers(self) -> list[int]:
        return [json.loads(line)["n"] for line in self.path.read_text().splitlines()]

    async def put(self, number: int) -> None:
        self.file.add(audit_line({"n": number}))
        await self.file.write()


def run(path: Path, body: Callable[[Made], Awaitable[None]]) -> None:
    async def main() -> None:
        made = Made(path)
        await body(made)
        await made.file.close()

    asyncio.run(main())


def test_rows_are_in_the_file_when_write_returns_in_their_order_and_readers_see_no_room(tmp_path: Path) -> None:
    async def body(made: Made) -> None:
        assert await made.file.reserve() is None
        assert made.path.read_bytes() == b""
        assert made.path.stat().st_mode & 0o777 == 0o600
        assert made.path.stat().st_blocks * 512 >= ROOM
        await asyncio.gather(*(made.put(number) for number in range(50)))
        assert made.numbers() == list(range(50))
        assert (made.changes, made.unwritten) == ([], 0)

    run(tmp_path / "audit.log", body)


def test_the_next_row_after_a_rename_is_in_a_new_file(tmp_path: Path) -> None:
    async def body(made: Made) -> None:
        await made.put(1)
        made.path.rename(tmp_path / "audit.log.1")
        await made.put(2)
        assert (made.numbers(), (tmp_path / "audit.log.1").read_text().count("\n")) == ([2], 1)

    run(tmp_path / "audit.log", body)


def test_a_full_disk_is_found_before_a_change_and_rows_wait_whole_until_there_is_room(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("no disk can be mounted here")

        async def body(made: Made) -> None:
            await made.put(1)
            fill(tmp_path / "disk/filler")
            fault = await made.file.reserve()
            assert fault is not None
            for number in range(2, 202):  # more than the room that was kept before
                made.file.add(audit_line({"n": number, "x": "x" * 600}))
                await made.file.write()
            assert 0 < made.unwritten < 200
            assert made.changes == ["No space left on device"]
            before = made.numbers()
            assert before == list(range(1, len(before) + 1)), "each is whole"
            (tmp_path / "disk/filler").unlink()
            assert await made.file.reserve() is None
            assert made.numbers() == list(range(1, 202))
            assert made.changes == ["No space left on device", ""]

        run(tmp_path / "disk/audit.log", body)


def test_each_change_in_progress_has_room_of_its_own_for_the_longest_row(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("no disk can be mounted here")

        async def body(made: Made) -> None:
            faults = await asyncio.gather(*(made.file.reserve() for _ in range(64)))
            places = faults.count(None)
            assert 1 < places < 64
            fill(tmp_path / "disk/filler")
            cancelled = asyncio.create_task(made.file.reserve())
            await asyncio.sleep(0)
            cancelled.cancel()
            for number in range(places):
                made.file.add(audit_line({"n": number, "x": "x" * (ROOM - 1_000)}), reserved=True)
            await made.file.write()
            assert (made.numbers(), made.unwritten) == (list(range(places)), 0)
            made.path.unlink()
            assert await made.file.reserve() is None

        run(tmp_path / "disk/audit.log", body)


def test_what_waits_is_bounded_tried_again_and_written_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.logs.audit_file.RETRY_S", 0.01)

    async def body(made: Made) -> None:
        for number in range(MAX_WAITING + 5):
            made.file.add(audit_line({"n": number}))
        assert made.unwritten == 5
        await made.file.write()
        assert made.unwritten == MAX_WAITING + 5
        made.path.parent.mkdir()
        while not made.path.exists() or not made.numbers():
            await asyncio.sleep(0.01)
        assert made.numbers() == list(range(MAX_WAITING))

    run(tmp_path / "missing/audit.log", body)


def test_room_that_was_missing_is_looked_for_also_without_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.logs.audit_file.RETRY_S", 0.01)

    async def body(made: Made) -> None:
        assert await made.file.reserve() is made.file.error is not None
        made.path.parent.mkdir()
        while made.file.error is not None:
            await asyncio.sleep(0.01)
        assert made.changes == ["No such file or directory", ""]

    run(tmp_path / "missing/audit.log", body)


def test_what_is_no_ordinary_file_is_never_written(tmp_path: Path) -> None:
    async def body(made: Made) -> None:
        made.path.symlink_to(tmp_path / "elsewhere")
        assert await made.file.reserve() is not None
        made.path.unlink()
        made.path.mkdir()
        assert await made.file.reserve() is not None
        assert not (tmp_path / "elsewhere").exists()

    run(tmp_path / "audit.log", body)


def test_any_row_is_a_line_of_json() -> None:
    for fields in ({"who": "a\nb", "x": {1, 2}}, {(1, 2): 3}):
        line = audit_line(fields)  # type: ignore[arg-type]
        assert "\n" not in line
        assert json.loads(line)["event"] == "audit"
