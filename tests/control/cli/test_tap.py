"""``framegate tap``: ls, verify, consumers."""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.consumer import claim_consumer, read_consumers, write_consumer
from framegate.proxy.tap.log_reader import segments
from tests.fakes.kept_tap import START, KeptTap
from tests.fakes.tap_files import flip, segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor


def run(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(main, ["tap", *words], input=answer)


def data(*words: str) -> Any:
    return json.loads(run(*words, "--output", "json").stdout)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A stream that ended, of several segments, and one that goes on."""
    done, going = FakeProcessor(tmp_path, boot_id="done", segment_size=1500), FakeProcessor(tmp_path, boot_id="going", slot=1)
    for number in range(12):
        done.block([bytes(300)] * 2, at_ns=START_NS + number * 10**9)
    done.close()
    going.block([bytes(10)], direction="response", at_ns=START_NS + 5 * 10**9)
    return tmp_path


def test_ls_lists_streams(log: Path) -> None:
    result = run("ls", str(log))
    head, done, going = result.stdout.splitlines()
    assert head.split()[:4] == ["STREAM", "STATE", "SEGMENTS", "SIZE"]
    assert done.split()[:3] == ["edge.0.done", "final", str(len(segments(str(log), "edge.0.done")))]
    assert "2023-11-14 22:13:20 UTC" in done
    assert "2023-11-14 22:13:31 UTC" in done
    assert going.split()[:3] == ["edge.1.going", "open", "1"]
    assert (result.exit_code, result.stderr) == (0, "")


def test_ls_in_json_has_the_segments_and_how_far_consumers_are_behind(log: Path) -> None:
    listed = segments(str(log), "edge.0.done")
    write_consumer(str(log), "tables", {"edge.0.done": listed[1].base}, 1)
    done, going = data("ls", str(log))
    assert (done["requests"], done["responses"], going["requests"], going["responses"]) == (24, 0, 0, 1)
    assert (done["state"], done["first_time"], done["lost"], done["unknown"]) == ("final", "2023-11-14T22:13:20.000000Z", 0, 0)
    assert [file["base"] for file in done["files"]] == [segment.base for segment in listed]
    assert sum(file["requests"] for file in done["files"]) == 24
    assert done["size"] == sum(segment.size for segment in listed)
    assert done["behind"] == {"tables": listed[-1].limit - listed[1].base}
    assert going["behind"] == {"tables": segments(str(log), "edge.1.going")[0].limit}
    assert "tables " in run("ls", str(log)).stdout


def test_ls_lists_segments_and_says_what_is_damaged(log: Path) -> None:
    rows = data("ls", str(log), "--segments")
    assert [row["state"] for row in rows] == ["sealed"] * (len(rows) - 2) + ["final", "open"]
    assert len(run("ls", str(log), "--segments").stdout.splitlines()) == len(rows) + 1
    flip(segment_files(log, "edge.0.done")[1], 4096 + 20)
    result = run("ls", str(log))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].split()[1] == "damaged"
    assert "edge.0.done: segment " in result.stderr
    assert data("ls", str(log))[0]["state"] == "damaged"


def test_nothing_is_no_fault(tmp_path: Path) -> None:
    for words, said in ((("ls",), "has no streams"), (("consumers", "list"), "has no consumers")):
        result = run(*words, str(tmp_path))
        assert (result.exit_code, result.stdout) == (0, "")
        assert said in result.stderr
        assert data(*words, str(tmp_path)) == []
    assert run("ls", str(tmp_path / "none")).exit_code == 2


def test_a_directory_that_is_not_a_taps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "passwd").touch()
    (tmp_path / "folder").mkdir()
    for words in (("ls",), ("cat",), ("follow",), ("verify",), ("consumers", "list")):
        result = run(*words, str(tmp_path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is not a tap's directory" in result.stderr


def test_verify_says_what_the_log_proves(log: Path) -> None:
    result = run("verify", str(log))
    verdict = verify(str(log))
    assert result.exit_code == (0 if verdict.complete else 1)
    shown = data("verify", str(log))
    assert shown["complete"] is verdict.complete
    assert [row["seen"] for row in shown["windows"]] == [row.seen for row in verdict.rows]
    assert result.stdout.splitlines()[-1].startswith("complete: " if verdict.complete else "not complete: ")


def test_what_was_accepted_is_no_failure_until_it_becomes_worse(tmp_path: Path) -> None:
    tap = KeptTap(tmp_path)
    processor = tap.begin(queue_size=1 << 16)
    for _ in range(3):
        processor.send([bytes(50_000)], at_ns=START)
    processor.flush()
    tap.end(processor)
    assert run("verify", str(tmp_path)).exit_code == 6
    for reason in ("", "  "):
        assert run("verify", str(tmp_path), "--accept", reason).exit_code == 2
        assert not (tmp_path / "_accepted.jsonl").exists()
    accepted = run("verify", str(tmp_path), "--accept", "the disk was slow, OPS-12")
    assert (accepted.exit_code, accepted.stderr) == (0, "framegate: 1 finding accepted\n")
    assert "lost (accepted: the disk was slow, OPS-12)" in accepted.stdout
    assert run("verify", str(tmp_path)).exit_code == 0
    assert data("verify", str(tmp_path))["windows"][0]["accepted"] == "the disk was slow, OPS-12"
    tap.recover(processor, 0, 1, START)
    assert run("verify", str(tmp_path)).exit_code == 1, "the ledger does not know of the end of what control wrote, and there is more lost"
    tap.lock.close()


def test_what_cannot_be_noted_is_not_accepted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (log / "_accepted.jsonl").mkdir()
    for words in ((), ("--accept", "why")):
        result = run("verify", str(log), *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "cannot be" in result.stderr


def test_verify_exits_with_2_when_it_cannot_look(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(directory: str, progress: object, within: object) -> None:
        raise PermissionError(13, "Permission denied", directory)

    monkeypatch.setattr("framegate.proxy.tap.completeness.verify", refused)
    result = run("verify", str(log))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be read: [Errno 13] Permission denied" in result.stderr
    assert run("verify", str(log / "none")).exit_code == 2


def test_consumers_are_listed(log: Path) -> None:
    write_consumer(str(log), "tables", {"edge.0.done": 10**6}, 1, owner="file:/checkpoint")
    write_consumer(str(log), "other", {}, 1)
    (log / "_consumers" / "bad.json").write_text("{")
    old = time.time_ns() - 3600 * 10**9
    os.utime(log / "_consumers" / "tables.json", ns=(old, old))
    with claim_consumer(str(log), "tables"):
        bad, other, tables = data("consumers", "list", str(log))
    total = segments(str(log), "edge.0.done")[-1].limit + segments(str(log), "edge.1.going")[-1].limit
    assert (tables["name"], tables["owner"], tables["working"], tables["fault"]) == ("tables", "file:/checkpoint", True, "")
    assert tables["behind"] == {"edge.0.done": 0, "edge.1.going": segments(str(log), "edge.1.going")[-1].limit}
    assert (other["behind_bytes"], other["working"], other["owner"]) == (total, False, "")
    assert (bad["behind_bytes"], bad["fault"] != "") == (total, True)
    rows = {line.split()[0]: line for line in run("consumers", "list", str(log)).stdout.splitlines()}
    assert "1h ago" in rows["tables"]
    assert "bad.json" in rows["bad"]


@pytest.mark.parametrize(("words", "answer", "code"), [(("--yes",), "", 0), ((), "y\n", 0), ((), "n\n", 1), ((), "", 1)])
def test_a_consumer_is_removed_when_that_is_meant(log: Path, words: tuple[str, ...], answer: str, code: int) -> None:
    write_consumer(str(log), "tables", {}, 1)
    result = run("consumers", "remove", str(log), "tables", *words, answer=answer)
    assert result.exit_code == code
    assert ("tables" in read_consumers(str(log)).offsets) is bool(code)
    assert result.stdout == ""
    assert "retention will no longer keep this data for it" in result.stderr


def test_a_consumer_that_is_at_work_or_not_there_is_not_removed(log: Path) -> None:
    write_consumer(str(log), "tables", {}, 1)
    with claim_consumer(str(log), "tables"):
        assert run("consumers", "remove", str(log), "tables", "--yes").exit_code == 4
    result = run("consumers", "remove", str(log), "table", "--yes")
    assert (result.exit_code, "consumers: tables" in result.stderr) == (3, True)
    assert run("consumers", "remove", str(log), "../x", "--yes").exit_code == 3
    assert "tables" in read_consumers(str(log)).offsets


def test_a_lock_that_may_not_be_looked_at_is_not_known(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_consumer(str(log), "tables", {}, 1)
    (log / "_consumers" / "tables.lock").touch()

    def refused(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refused)
    assert data("consumers", "list", str(log))[0]["working"] is None
    assert run("consumers", "list", str(log)).stdout.splitlines()[1].split()[1] == "?"
