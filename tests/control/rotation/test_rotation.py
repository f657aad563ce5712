"""When files are looked at, taken, refused and told; what takes them is a fake."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from framegate.control.events import Bus
from framegate.control.files import Contents, Stamp, digest, stamp
from framegate.control.meters import Meters
from framegate.control.rotation.rotation import RETRY_S, Rotation
from framegate.control.rotation.source import Refusal, Reloader, Source
from framegate.control.status import ReloadOutcome
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import RotationConfig
from tests.fakes.fleet import MemoryLog
from tests.fakes.scenario import run_by


class FakeTaker(Reloader):
    """Takes everything but what ends with ``bad``; ``before`` is waited for first."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Contents]] = []
        self.failure: Exception | None = None
        self.before: Awaitable[Any] | None = None

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        self.asked.append(dict(found))
        if self.before is not None:
            await self.before
        if self.failure is not None:
            raise self.failure
        bad = {owner: path for owner, contents in found.items() for path, data in contents.items() if data.endswith(b"bad")}
        return {owner: Refusal(path, "is bad") for owner, path in bad.items()}


class Bench:
    """A rotation whose clock stands until it is moved, and two sources of one file each."""

    def __init__(self, folder: Path, grace_ms: int = 10_000) -> None:
        self.folder = folder
        self.now_s = 0.0
        self.log = MemoryLog()
        self.meters = Meters()
        self.reloader = FakeTaker()
        events = Bus((self.log,), on_failure=lambda error: None)
        self.rotation = Rotation(
            RotationConfig(poll_ms=1000, grace_ms=grace_ms), events, self.meters, TaskMonitor(self.log, self.meters), clock=lambda: self.now_s
        )
        for owner in ("a", "b"):
            self.write(owner, b"1")
            path = str(folder / owner)
            self.rotation.watch(Source(owner=owner, kind="sasl", paths=(path,), reloader=self.reloader, in_force=digest({path: b"1"})))

    def write(self, owner: str, content: bytes) -> None:
        (self.folder / owner).write_bytes(content)

    async def look(self, seconds: float = 1.0) -> None:
        self.now_s += seconds
        await self.rotation.look()

    def told(self) -> list[tuple[str, str]]:
        return [(row["event"].removeprefix("files_"), row["owner"]) for row in self.log.rows if row["event"].startswith("files_")]

    def count(self, result: str = "") -> float:
        return self.meters.value("reload.count", "sasl", result)


def run(body: Callable[[Bench], Awaitable[None]], **options: int) -> None:
    async def main(folder: str) -> None:
        async with asyncio.timeout(10):
            await body(Bench(Path(folder), **options))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))


@run_by(run)
async def test_what_two_looks_find_is_taken_once(bench: Bench) -> None:
    await bench.look()
    assert bench.reloader.asked == []
    bench.write("a", b"2")
    await bench.look()
    assert bench.reloader.asked == [], "it may not be whole"
    bench.write("a", b"22")
    await bench.look()
    assert bench.reloader.asked == []
    await bench.look()
    assert bench.reloader.asked == [{"a": {str(bench.folder / "a"): b"22"}}]
    for _ in range(3):
        await bench.look()
    assert (len(bench.reloader.asked), bench.told(), bench.count()) == (1, [("replaced", "a")], 1)


@run_by(run)
async def test_sources_that_are_new_at_once_are_taken_together_and_a_bad_one_keeps_no_good_one_back(bench: Bench) -> None:
    bench.write("a", b"bad")
    bench.write("b", b"2")
    await bench.look()
    await bench.look()
    assert [sorted(asked) for asked in bench.reloader.asked] == [["a", "b"]]
    assert bench.told() == [("replaced", "b")]
    assert bench.rotation.refusal("a", "sasl") is None, "it may become good yet"


@run_by(run)
async def test_a_refusal_is_told_when_it_has_lasted_and_asked_again_after_a_while(bench: Bench) -> None:
    bench.write("a", b"bad")
    await bench.look()
    for _ in range(9):
        await bench.look()
    assert (bench.told(), bench.count("refused"), len(bench.reloader.asked)) == ([], 0, 1)
    await bench.look()
    assert (bench.told(), bench.count("refused")) == ([("refused", "a")], 1)
    (row,) = bench.log.events("files_refused")
    assert (row["level"], row["kind"], row["file"], row["reason"]) == ("error", "sasl", str(bench.folder / "a"), "is bad")
    assert bench.rotation.refusal("a", "sasl") == Refusal(str(bench.folder / "a"), "is bad")
    await bench.look(RETRY_S)
    assert len(bench.reloader.asked) == 2
    await bench.look()
    assert (bench.told(), bench.count("refused"), len(bench.reloader.asked)) == ([("refused", "a")], 1, 2), "once is enough"
    bench.write("a", b"3")
    await bench.look()
    await bench.look()
    assert (bench.told()[-1], bench.rotation.refusal("a", "sasl")) == (("replaced", "a"), None)


@run_by(run)
async def test_what_becomes_good_in_time_was_never_a_failure(bench: Bench) -> None:
    bench.write("a", b"bad")
    for _ in range(5):
        await bench.look()
    bench.write("a", b"good")
    for _ in range(20):
        await bench.look()
    assert (bench.told(), bench.count("refused")) == ([("replaced", "a")], 0)


@run_by(run)
async def test_a_file_that_is_missing_is_a_failure_of_its_own_and_what_was_comes_back(bench: Bench) -> None:
    (bench.folder / "a").unlink()
    for _ in range(11):
        await bench.look()
    (row,) = bench.log.events("files_refused")
    assert ("No such file" in row["reason"], bench.reloader.asked) == (True, [])
    bench.write("a", b"1")
    await bench.look()
    assert (bench.told()[-1], bench.rotation.refusal("a", "sasl")) == (("restored", "a"), None)
    await bench.look(RETRY_S)
    assert (len(bench.told()), bench.reloader.asked) == (2, [])


@run_by(run, grace_ms=0)
async def test_a_taker_that_fails_takes_nothing_and_is_asked_again(bench: Bench) -> None:
    bench.reloader.failure = RuntimeError("a secret")
    bench.write("a", b"2")
    for _ in range(11):
        await bench.look()
    (row,) = bench.log.events("files_refused")
    assert row["reason"] == "could not be judged: RuntimeError"
    assert bench.meters.value("task.failures", "rotation") == 1
    bench.reloader.failure = None
    await bench.look(RETRY_S)
    assert bench.told()[-1] == ("replaced", "a")


@run_by(run)
async def test_a_reload_waits_for_nothing_and_says_what_became_of_each(bench: Bench) -> None:
    bench.write("a", b"2")
    bench.write("b", b"bad")
    assert await bench.rotation.reload() == [
        ReloadOutcome(owner="a", kind="sasl", result="replaced"),
        ReloadOutcome(owner="b", kind="sasl", result="refused", file=str(bench.folder / "b"), reason="is bad"),
    ]
    assert bench.told() == [("replaced", "a"), ("refused", "b")]
    assert [item.result for item in await bench.rotation.reload()] == ["unchanged", "refused"]
    assert len(bench.reloader.asked) == 2, "who asks is told anew"
    bench.write("b", b"1")
    assert [item.result for item in await bench.rotation.reload()] == ["unchanged", "unchanged"]
    assert bench.told()[-1] == ("restored", "b")


@run_by(run)
async def test_a_reload_that_nobody_waits_for_goes_on_to_its_end_and_a_look_waits_for_it(bench: Bench) -> None:
    gate = bench.reloader.before = asyncio.get_running_loop().create_future()
    bench.write("a", b"2")
    call = asyncio.create_task(bench.rotation.reload())
    while not bench.reloader.asked:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    look = asyncio.create_task(bench.look())
    await asyncio.sleep(0.01)
    assert not look.done()
    gate.set_result(None)
    await look
    assert (bench.told(), len(bench.reloader.asked)) == ([("replaced", "a")], 1)


@run_by(run)
async def test_it_looks_by_itself_until_it_is_closed(bench: Bench) -> None:
    events = Bus((bench.log,), on_failure=lambda error: None)
    rotation = Rotation(RotationConfig(poll_ms=100), events, bench.meters, TaskMonitor(bench.log, bench.meters))
    path = str(bench.folder / "a")
    rotation.watch(Source(owner="a", kind="tls", paths=(path,), reloader=bench.reloader, in_force=digest({path: b"0"})))
    rotation.start()
    while not bench.reloader.asked:
        await asyncio.sleep(0.01)
    rotation.close()


@pytest.mark.parametrize(("age_ns", "seen"), [(1_000_000_000, True), (60_000_000_000, False)])
@run_by(run)
async def test_what_changed_a_moment_ago_is_read_again_though_its_stamp_is_the_same(
    bench: Bench, *, monkeypatch: pytest.MonkeyPatch, age_ns: int, seen: bool
) -> None:
    changed = time.time_ns() - age_ns
    monkeypatch.setattr("framegate.control.rotation.rotation.stamp", lambda paths: ((1, 1, 1, changed, changed),))
    await bench.look()
    bench.write("a", b"2")
    await bench.look()
    await bench.look()
    assert bench.told() == ([("replaced", "a")] if seen else [])


@run_by(run)
async def test_a_reload_of_one_file_is_of_the_sources_that_it_belongs_to(bench: Bench) -> None:
    shared = (str(bench.folder / "b"), str(bench.folder / "a"))
    before = digest({shared[0]: b"1", shared[1]: b"1"})
    bench.rotation.watch(Source(owner="c", kind="sasl", paths=shared, reloader=bench.reloader, in_force=before))
    bench.write("a", b"2")
    bench.write("b", b"bad")
    assert [(item.owner, item.result) for item in await bench.rotation.reload(str(bench.folder / "a"))] == [("a", "replaced"), ("c", "refused")]
    assert bench.told() == [("replaced", "a"), ("refused", "c")], "nobody has looked at the other one"
    assert await bench.rotation.reload(str(bench.folder / "x")) == []
    assert [item.result for item in await bench.rotation.reload()] == ["unchanged", "refused", "refused"]


@run_by(run)
async def test_a_file_system_that_does_not_answer_holds_up_nothing_but_the_look(bench: Bench, *, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hanging(paths: Iterable[str]) -> Stamp:
        assert answers.wait(10)
        return stamp(paths)

    monkeypatch.setattr("framegate.control.rotation.rotation.stamp", hanging)
    bench.write("a", b"2")
    look = asyncio.create_task(bench.look())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not look.done()
    answers.set()
    await look
    await bench.look()
    assert bench.told() == [("replaced", "a")]


def test_what_is_not_automatic_is_noted_until_it_becomes_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench, wanted = Bench(tmp_path), False
        path = str(tmp_path / "a")
        source = Source(owner="a", kind="sasl", paths=(path,), reloader=bench.reloader, in_force=digest({path: b"1"}), automatic=lambda: wanted)
        bench.rotation.watch(source)
        bench.write("a", b"2")
        await bench.look()
        assert not bench.rotation.changed("a", "sasl"), "it may be half written"
        for _ in range(2):
            await bench.look()
        assert (bench.rotation.changed("a", "sasl"), bench.reloader.asked) == (True, [])
        assert [item.owner for item in await bench.rotation.reload()] == ["b"]
        wanted = True
        await bench.look()
        assert (bench.rotation.changed("a", "sasl"), [list(item) for item in bench.reloader.asked]) == (False, [["a"]])

    asyncio.run(scenario())
