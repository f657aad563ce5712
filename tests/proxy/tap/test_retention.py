import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.tap.consumer import write_consumer
from framegate.proxy.tap.log_reader import Segment, segments, streams
from framegate.proxy.tap.retention import Retention
from tests.fakes.cases import each_of

S = 1_000_000_000
MB = 1_000_000


def make(root: Path, stream: str, *ages_s: int, size: int = MB, last_open: bool = False) -> list[str]:
    """Segments of one stream, each ``size`` bytes long, last written so many seconds after the epoch."""
    (root / stream).mkdir(exist_ok=True)
    paths = []
    for number, age in enumerate(ages_s):
        suffix = "open" if last_open and number == len(ages_s) - 1 else "seg"
        path = root / stream / f"{number * (size - 4096):020d}.{suffix}"
        path.touch()
        os.truncate(path, size)
        os.utime(path, (age, age))
        paths.append(str(path))
    return paths


def left(root: Path) -> list[str]:
    return [
        f"{stream.removeprefix('n.0.')}/{segment.base // (MB - 4096)}" for stream in streams(str(root)) for segment in segments(str(root), stream)
    ]


END = MB - 4096


@each_of(
    ("case", "ages", "consumers", "budget", "expected", "unread"),
    [
        ("within the budget", {"a": (1, 2)}, {"tables": {"n.0.a": 10 * MB}}, 3 * MB, ["a/0", "a/1"], 0),
        ("the oldest of all streams go", {"a": (10, 30, 50), "b": (20, 40, 60)}, {}, 3 * MB, ["a/2", "b/1", "b/2"], 0),
        (
            "what every consumer has read goes first",
            {"a": (10, 20, 30), "b": (40, 50, 60)},
            {"slow": {"n.0.a": 0, "n.0.b": 2 * END}, "fast": {"n.0.a": 10 * MB, "n.0.b": 10 * MB}},
            4 * MB,
            ["a/0", "a/1", "a/2", "b/2"],
            0,
        ),
        ("the budget holds for a consumer that stopped", {"a": (10, 20, 30)}, {"dead": {"n.0.a": END}}, MB, ["a/2"], 1),
        ("a stream that a consumer does not know is needed", {"a": (10,), "b": (20,)}, {"tables": {"n.0.b": 10 * MB}}, MB, ["a/0"], 0),
        ("in a stream the order is that of offsets", {"a": (30, 10, 20)}, {}, 2 * MB, ["a/1", "a/2"], 0),
    ],
    fresh={"folder": tempfile.TemporaryDirectory},
)
def test_a_sweep_deletes_what_is_over_the_budget_by_need_and_then_by_age(
    folder: str, case: str, ages: dict[str, tuple[int, ...]], consumers: dict[str, dict[str, int]], budget: int, expected: list[str], unread: int
) -> None:
    for stream, seconds in ages.items():
        make(Path(folder), f"n.0.{stream}", *seconds)
    for name, offsets in consumers.items():
        write_consumer(folder, name, offsets, 0)
    sweep = Retention(folder, budget, 0).sweep(100 * S)
    gone = sum(map(len, ages.values())) - len(expected)
    assert (left(Path(folder)), sweep.unread) == (expected, unread)
    assert (sweep.deleted, sweep.deleted_bytes, sweep.usage, sweep.over, sweep.error) == (gone, gone * MB, len(expected) * MB, 0, "")


def test_age_counts_from_the_last_write_whatever_the_budget_and_consumers(tmp_path: Path) -> None:
    make(tmp_path, "n.0.a", 10, 50, 90)
    write_consumer(str(tmp_path), "tables", {}, 0)
    retention = Retention(str(tmp_path), 100 * MB, 40_000)
    assert retention.sweep(50 * S).deleted == 0
    sweep = retention.sweep(90 * S + 1)
    assert left(tmp_path) == ["a/2"]
    assert (sweep.deleted, sweep.unread) == (2, 2)


def test_what_is_kept_for_a_consumer_is_deleted_neither_by_budget_nor_by_age(tmp_path: Path) -> None:
    make(tmp_path, "n.0.a", 10, 50, 90)
    retention = Retention(str(tmp_path), MB, 40_000, keep_for="ship")
    assert retention.sweep(1000 * S).deleted == 0, "it is not registered yet"
    write_consumer(str(tmp_path), "ship", {"n.0.a": 2 * END - 1}, 0)
    assert retention.sweep(1000 * S).deleted == 1
    write_consumer(str(tmp_path), "ship", {"n.0.a": 2 * END}, 0)
    assert (retention.sweep(1000 * S).deleted, left(tmp_path)) == (1, ["a/2"])


def test_open_segments_stay_and_are_reported(tmp_path: Path) -> None:
    make(tmp_path, "n.0.a", 10, 20, last_open=True)
    sweep = Retention(str(tmp_path), MB // 2, 0).sweep(100 * S, {"n.0.a"})
    assert left(tmp_path) == ["a/1"]
    assert sweep.over == MB // 2


def test_room_is_left_for_what_the_log_grows_between_sweeps(tmp_path: Path) -> None:
    make(tmp_path, "n.0.a", *range(1, 9))
    retention = Retention(str(tmp_path), 10 * MB, 0)
    assert retention.sweep(100 * S).usage == 8 * MB
    make(tmp_path, "n.0.a", *range(1, 11))
    assert retention.sweep(101 * S).usage == 8 * MB


def test_folders_of_dead_streams_go_with_their_last_segment_and_live_ones_stay(tmp_path: Path) -> None:
    make(tmp_path, "n.0.dead", 10)
    make(tmp_path, "n.0.live", 20)
    (tmp_path / "n.0.empty").mkdir()
    (tmp_path / "lost+found").mkdir()
    sweep = Retention(str(tmp_path), 0, 0).sweep(100 * S, {"n.0.live"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lost+found", "n.0.live"]
    assert (sweep.usage, sweep.error) == (0, "")


def test_a_consumer_file_that_cannot_be_read_needs_everything_up_to_the_budget(tmp_path: Path) -> None:
    make(tmp_path, "n.0.a", 10, 20)
    (tmp_path / "_consumers").mkdir()
    (tmp_path / "_consumers" / "odd.json").write_text('{"version": 1, "streams": {"n.0.a": 99999999')
    sweep = Retention(str(tmp_path), MB, 0).sweep(100 * S)
    assert (sweep.deleted, sweep.unread, sweep.error) == (1, 1, "")
    assert "odd.json" in sweep.unreadable["odd"]


def test_what_a_consumer_had_read_when_its_file_was_last_good_goes_first(tmp_path: Path) -> None:
    make(tmp_path, "n.0.a", 10, 20)
    make(tmp_path, "n.0.b", 30, 40)
    write_consumer(str(tmp_path), "job", {"n.0.b": 2 * (MB - 4096)}, 0)
    retention = Retention(str(tmp_path), 4 * MB, 0)
    assert retention.sweep(100 * S).deleted == 0
    (tmp_path / "_consumers" / "job.json").write_text("")
    for _ in range(2):
        assert retention.sweep(100 * S).unreadable.keys() == {"job"}
    make(tmp_path, "n.0.c", 50)
    sweep = retention.sweep(100 * S)
    assert left(tmp_path) == ["a/0", "a/1", "c/0"]
    assert sweep.unread == 0


def test_a_folder_of_consumers_that_cannot_be_listed_needs_everything(tmp_path: Path) -> None:
    make(tmp_path, "n.0.a", 10)
    make(tmp_path, "n.0.b", 20)
    write_consumer(str(tmp_path), "job", {"n.0.a": MB - 4096, "n.0.b": MB - 4096}, 0)
    retention = Retention(str(tmp_path), 2 * MB, 0)
    assert retention.sweep(100 * S).unreadable == {}
    (tmp_path / "_consumers").rename(tmp_path / "moved")
    (tmp_path / "_consumers").write_text("")
    make(tmp_path, "n.0.c", 30)
    sweep = retention.sweep(100 * S)
    assert sweep.unread == sweep.deleted > 0
    assert sweep.unreadable.keys() == {"_consumers"}


def test_a_segment_that_cannot_be_deleted_is_reported_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path, "n.0.a", 10, 20, 30)
    real = os.unlink

    def unlink(path: str) -> None:
        if path == paths[0]:
            raise PermissionError(1, "Operation not permitted")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    sweep = Retention(str(tmp_path), MB, 0).sweep(100 * S)
    assert (sweep.deleted, sweep.usage) == (1, 2 * MB)
    assert "not permitted" in sweep.error


def test_what_is_to_be_deleted_is_told_while_it_is_still_there(tmp_path: Path) -> None:
    told: list[list[str]] = []

    def on_delete(doomed: Sequence[Segment]) -> None:
        assert all(os.path.exists(segment.path) for segment in doomed)
        told.append([f"{segment.stream.removeprefix('n.0.')}/{segment.base}" for segment in doomed])

    make(tmp_path, "n.0.a", 50, 40, 30)
    make(tmp_path, "n.0.b", 45)
    retention = Retention(str(tmp_path), 2 * MB, 0, on_delete)
    retention.sweep(10**20)
    retention.sweep(10**20)
    assert [sorted(doomed) for doomed in told] == [["a/0", "b/0"]], "and of nothing nobody is told"


class Calls:
    """How often files and folders are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("stat", "listdir", "scandir", "open"):
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return real(*arguments, **named)

        return call

    def of(self, action: Callable[[], object]) -> int:
        before = self.count
        action()
        return self.count - before


def settled(root: Path) -> None:
    """The folders changed some time ago."""
    for path in root.iterdir():
        os.utime(path, (1, 1))


def test_when_nothing_is_due_a_sweep_costs_a_few_calls_for_a_stream_however_many_segments_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []
    for count in (20, 200):
        for stream in ("n.0.a", "n.0.b"):
            make(tmp_path, stream, *range(1, count + 1), last_open=True)
        settled(tmp_path)
        retention = Retention(str(tmp_path), 1000 * MB, 10**9)
        retention.sweep(1000 * S)
        with monkeypatch.context() as patch:
            calls = Calls(patch)
            costs.append([calls.of(functools.partial(retention.sweep, 1000 * S)) for _ in range(2)])
        left = retention.left
        retention.sweep(1000 * S)
        assert all(retention.left[stream] is left[stream] for stream in left), "who asks what is new need not compare"
    assert costs[0] == costs[1]
    assert max(costs[0]) <= 2 * 3 + 3


def test_what_changes_between_sweeps_is_seen_and_sealed_segments_are_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path, "n.0.a", *range(1, 101), last_open=True)
    settled(tmp_path)
    retention = Retention(str(tmp_path), 1000 * MB, 0)
    assert retention.sweep(1000 * S).usage == 100 * MB
    os.truncate(paths[-1], 2 * MB)
    assert retention.sweep(1000 * S).usage == 101 * MB, "an open segment grows"
    os.rename(paths[-1], paths[-1].replace(".open", ".seg"))
    with monkeypatch.context() as patch:
        assert Calls(patch).of(lambda: retention.sweep(1000 * S)) < 10
    assert [segment.sealed for segment in retention.left["n.0.a"][-2:]] == [True, True]
    os.unlink(paths[0])
    assert retention.sweep(1000 * S).usage == 100 * MB
    make(tmp_path, "n.0.b", 5)
    assert retention.sweep(1000 * S).usage == 101 * MB
    folder = tmp_path / "n.0.b"
    (folder / f"{0:020d}.seg").unlink()
    changed = folder.stat().st_mtime_ns
    (folder / f"{64:020d}.seg").touch()
    os.utime(folder, ns=(changed, changed))
    retention.sweep(1000 * S)
    assert [segment.base for segment in retention.left["n.0.b"]] == [64], "a folder that has changed of late is listed whatever its time says"


def test_the_order_of_deletion_is_that_of_need_and_then_of_age_whatever_the_number_of_streams(tmp_path: Path) -> None:
    """Against the plain way: sort all."""
    for number in range(6):
        make(tmp_path, f"n.{number}.a", *((7 * number + 13 * index) % 50 + 1 for index in range(12)))
    size = MB - 4096
    write_consumer(str(tmp_path), "job", {f"n.{number}.a": number * 2 * size for number in range(5)}, 0)
    told: list[Segment] = []
    plain: list[tuple[bool, int, str, int]] = []
    for number in range(6):
        latest = 0
        for segment in segments(str(tmp_path), f"n.{number}.a"):
            latest = max(latest, segment.modified_ns)
            plain.append((segment.limit > (number * 2 * size if number < 5 else 0), latest, segment.stream, segment.base))
    Retention(str(tmp_path), 30 * MB, 0, told.extend).sweep(1000 * S)
    assert [(segment.stream, segment.base) for segment in told] == [item[2:] for item in sorted(plain)[:42]]
