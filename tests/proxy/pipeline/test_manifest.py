import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.pipeline import manifest as module
from framegate.proxy.pipeline.manifest import MANIFEST, DataFile, Manifest, ManifestError, ManifestLog, has_batches, read_manifest


def file(number: int, table: str = "frames") -> DataFile:
    return DataFile(f"{table}/date=2026-11-22/hour=07/{number}.parquet", 2, 100, number * 10, number * 10 + 9, number)


def commit(log: ManifestLog, batch: int) -> Manifest:
    return log.commit(batch=batch, query="q", rows={"frames": 2}, total={"frames": 2 * (batch + 1)}, add=[file(batch), file(batch, "gaps")])


def test_nothing_is_an_empty_manifest(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == Manifest()
    assert not has_batches(tmp_path)
    ManifestLog(tmp_path).close()
    assert read_manifest(tmp_path) == Manifest()
    assert has_batches(tmp_path)


def test_readers_see_what_was_committed(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path)
    for batch in range(3):
        assert commit(log, batch) == log.state == read_manifest(tmp_path)
    log.commit(add=[file(9)], remove=[file(0).path, file(1).path], at=5)
    state = log.commit(gone=[file(1).path])
    assert state == read_manifest(tmp_path)
    assert (state.batch, state.query, state.total) == (2, "q", {"frames": 6})
    assert [found.batch for found in state.of("frames")] == [2, 9]
    assert state.removed == {file(0).path: 5}
    assert (file(0).table, file(0).folder) == ("frames", "frames/date=2026-11-22/hour=07")


def test_files_are_found_by_time(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path)
    for batch in range(4):
        commit(log, batch)
    assert [found.batch for found in log.state.of("frames", 15, 30)] == [1, 2]
    assert [found.batch for found in log.state.of("frames", 20)] == [2, 3]
    assert [found.batch for found in log.state.of("gaps", None, 11)] == [0, 1]


@given(cut=st.integers(min_value=0, max_value=1 << 16))
@settings(max_examples=50, deadline=None)
def test_a_torn_line_is_one_that_never_was(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    output = tmp_path_factory.mktemp("output")
    log = ManifestLog(output)
    states, sizes = [log.state], [(output / MANIFEST).stat().st_size]
    for batch in range(3):
        states.append(commit(log, batch))
        sizes.append((output / MANIFEST).stat().st_size)
    log.close()
    length = sizes[0] + cut % (sizes[-1] - sizes[0] + 1)
    os.truncate(output / MANIFEST, length)
    expected = states[max(number for number, size in enumerate(sizes) if size <= length)]
    assert read_manifest(output) == expected
    again = ManifestLog(output)
    assert again.state == expected
    assert commit(again, 7) == read_manifest(output)


def test_damage_before_the_last_line_is_said(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path)
    for batch in range(3):
        commit(log, batch)
    data = bytearray((tmp_path / MANIFEST).read_bytes())
    data[data.index(b"\n") + 30] ^= 1
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(ManifestError, match="line 2 is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(("text", "said"), [(b"", "no whole line"), (b'{"format":2}', "newer version")])
def test_what_is_no_manifest_of_ours_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / MANIFEST).write_bytes(b"%08x %b\n" % (module.zlib.crc32(text), text) if text else b"")
    with pytest.raises(ManifestError, match=said):
        ManifestLog(tmp_path)


def test_changes_that_outweigh_the_snapshot_are_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_CHANGES", 2000)
    log = ManifestLog(tmp_path)
    lines = []
    for batch in range(60):
        commit(log, batch)
        log.commit(remove=[file(batch).path, file(batch, "gaps").path], at=0)
        log.commit(gone=[file(batch).path, file(batch, "gaps").path])
        lines.append((tmp_path / MANIFEST).read_bytes().count(b"\n"))
    assert max(lines) < 60
    assert min(lines[10:]) <= 3
    assert read_manifest(tmp_path) == log.state
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST]


def test_a_change_that_could_not_be_written_is_not_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ManifestLog(tmp_path)
    before = commit(log, 0)
    write = os.write

    def half(fd: int, data: bytes) -> int:
        write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", half)
        with pytest.raises(OSError, match="No space"):
            commit(log, 1)
    assert log.state == read_manifest(tmp_path) == before
    assert commit(log, 1) == read_manifest(tmp_path)


def test_a_reader_beside_the_writer_sees_one_state_or_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_CHANGES", 3000)
    log = ManifestLog(tmp_path)
    commit(log, 0)
    done = threading.Event()

    def write() -> None:
        for batch in range(1, 100):
            commit(log, batch)
            log.commit(remove=[file(batch - 1).path], at=0)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    last = 0
    while not done.is_set():
        state = read_manifest(tmp_path)
        assert [found.batch for found in state.of("frames")] in ([state.batch], [state.batch - 1, state.batch])
        assert len(state.of("gaps")) == state.batch + 1
        assert state.batch >= last
        last = state.batch
    thread.join()
