"""``framegate tap cat``, and what ``tap follow`` asks for."""

import re
import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap.consumer import write_consumer
from framegate.proxy.tap.gap import NO_CONNECTION, Gap
from framegate.proxy.tap.log_reader import walk
from framegate.proxy.tap.record import REASON_DISK_FULL
from tests.fakes.privileges import unprivileged
from tests.fakes.tap_files import chop, flip, segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor

SECOND = 1_000_000_000
CONNECTION = (1 << 29) | 5


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["tap", "cat", *words])


def produce(correlation: int, client: bytes = b"app") -> bytes:
    return struct.pack(">hhih", 0, 9, correlation, len(client)) + client + bytes(10)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two processors: Kafka on one, plain frames on the other."""
    root = tmp_path / "tap"
    kafka, plain = FakeProcessor(root, boot_id="k"), FakeProcessor(root, boot_id="p", slot=1)
    for number in range(3):
        at = START_NS + 2 * number * SECOND
        kafka.send([produce(number)], connection=CONNECTION, protocol="kafka", at_ns=at)
        kafka.send(
            [struct.pack(">i", number)], connection=CONNECTION, direction="response", protocol="kafka", at_ns=at + 5000, keys=[9], latencies=[2500]
        )
        kafka.flush()
        plain.block([b"p" * (100 * (number + 1))], at_ns=at + SECOND)
    kafka.close()
    return root


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_frames_are_lines_in_order_of_time(log: Path) -> None:
    shown = lines(run(str(log)))
    assert [line.split()[0] for line in shown] == sorted(line.split()[0] for line in shown)
    assert [line.split()[2] for line in shown] == ["request", "response", "request"] * 3
    assert shown[0].split()[:9] == ["2023-11-14T22:13:20.000000Z", "0-1-5", "request", "main", "23", "Produce", "v9", "#0", "app"]
    assert shown[1].split()[3:8] == ["main", "4", "Produce", "v9", "#0"]
    assert shown[1].split()[8] == "2.500ms"


def test_the_limit_says_that_there_is_more(log: Path) -> None:
    result = run(str(log), "--limit", "2")
    assert (len(lines(result)), result.stderr) == (2, "framegate: more frames exist than --limit 2\n")
    assert run(str(log), "--limit", "9").stderr == ""


def test_the_payload_is_as_long_as_asked(log: Path) -> None:
    assert lines(run(str(log), "--payload", "2", "--limit", "1"))[0].endswith("all  00 00 |..|")
    assert "|" not in run(str(log), "--payload", "0").stdout


def test_gaps_are_lines_of_their_own(tmp_path: Path) -> None:
    lost = FakeProcessor(tmp_path, flush_size=64 << 10, queue_size=64 << 10)
    lost.send([b"kept"], connection=CONNECTION)
    for _ in range(4):
        lost.send([bytes(40_000)], connection=CONNECTION, at_ns=START_NS + SECOND)
    lost.flush()
    lost.close()
    gaps = [line for line in lines(run(str(tmp_path), "--connection", "0-1-5")) if line.startswith("--")]
    assert gaps
    assert all(re.match(r"-- \d+ frames? lost: queue_full \(exact\), .* 2023-11-14T22:13:21.000000Z, 0-1-5 request main all$", gap) for gap in gaps)
    assert not [line for line in lines(run(str(tmp_path), "--connection", "0-1-6")) if line.startswith("--")]


def test_what_is_wrong_with_the_words_is_usage(log: Path) -> None:
    for words in (["--api", "Nonsense"], ["--since", "yesterday"], ["--since", "2023-11-14T22:13:23"], ["--connection", "7"], ["--limit", "0"]):
        assert run(str(log), *words).exit_code == 2, words
    assert "write 2023-11-14T22:13:23Z" in run(str(log), "--since", "2023-11-14T22:13:23").stderr
    assert run(str(log / "none")).exit_code == 2
    result = run(str(log), "--stream", "edge.7.*")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no stream edge.7.*" in result.stderr


def test_the_rules_in_force_are_named_before_what_they_decided_on(tmp_path: Path) -> None:
    root = tmp_path / "tap"
    processor = FakeProcessor(root)
    processor.writer.set_rules('[{"apis":[],"name":"second"},{"name":"third"}]', START_NS + SECOND)
    processor.block([b"frame"], at_ns=START_NS + 2 * SECOND)
    rules, frame = lines(run(str(root)))
    assert rules == "-- 2023-11-14T22:13:22.000000Z tap rules from here on: second, third"
    assert " request " in frame
    assert run(str(root), "--max-size", "1").output == ""
    assert run(str(root), "--raw").output == "frame"
    processor.close()


def test_raw_leaves_out_what_the_log_has_not_all_of(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, rule=TapRule(name="cut", max_frame_bytes=4))
    processor.block([b"abcd", b"abcde"])
    result = run(str(tmp_path), "--raw")
    assert (result.exit_code, result.stdout_bytes) == (1, b"abcd")
    assert result.stderr == "framegate: 1 frame not written: their bodies are not complete in the log\n"


def test_damage_is_a_line_in_its_place_and_the_rest_is_shown(log: Path) -> None:
    (path,) = segment_files(log, "edge.0.k")
    refs = list(walk(str(log), "edge.0.k"))
    flip(path, refs[1].position + 150)
    result = run(str(log), "--stream", "edge.0.k")
    shown = result.stdout.splitlines()
    assert result.exit_code == 1
    assert [line.split()[0] == "--" for line in shown] == [False, False, True, False, False]
    assert f"edge.0.k at {refs[1].header.offset}: its body's CRC does not fit; the log continues at {refs[1].header.end}" in shown[2]
    raw = run(str(log), "--stream", "edge.0.k", "--raw")
    assert (raw.exit_code, raw.stdout_bytes) == (1, produce(0) + struct.pack(">i", 0) + produce(2) + struct.pack(">i", 2))
    assert "CRC does not fit" in raw.stderr


def test_a_torn_tail_is_said(log: Path) -> None:
    (path,) = segment_files(log, "edge.1.p")
    chop(path, path.stat().st_size - 7)
    result = run(str(log))
    assert len(lines(result)) == 8
    assert re.search(r"edge.1.p: [\d,]+ bytes at its end are not a complete block: it is being written, or its processor died", result.stderr)


def test_a_directory_that_may_not_be_written_is_enough(log: Path) -> None:
    commands = (["cat"], ["ls"], ["consumers", "list"], ["verify"])
    write_consumer(str(log), "tables", {}, 1)
    as_root = [CliRunner().invoke(main, ["tap", *words, str(log)]) for words in commands]
    with tempfile.TemporaryDirectory() as open_to_all:  # pytest's own are for their owner
        copy = Path(open_to_all) / "tap"
        shutil.copytree(log, copy)
        for path in [copy.parent, copy, *copy.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        with unprivileged():
            with pytest.raises(PermissionError):
                (copy / "x").touch()
            for words, expected in zip(commands, as_root, strict=True):
                result = CliRunner().invoke(main, ["tap", *words, str(copy)])
                assert (result.exit_code, result.stdout.splitlines()[:3]) == (expected.exit_code, expected.stdout.splitlines()[:3])
            refused = CliRunner().invoke(main, ["tap", "consumers", "remove", str(copy), "tables", "--yes"])
        assert (refused.exit_code, "cannot be removed" in refused.stderr) == (1, True)
        for path in [copy.parent, copy, *copy.rglob("*")]:
            path.chmod(0o755)


@pytest.mark.parametrize(("words", "code"), [(["cat"], 1), (["ls"], 1), (["follow"], 1), (["verify"], 2)])
def test_a_file_that_may_not_be_read_is_one_line(capfd: pytest.CaptureFixture[str], words: list[str], code: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        FakeProcessor(Path(root)).block([b"x"])
        (path,) = segment_files(Path(root))
        for folder in (Path(root), path.parent):
            folder.chmod(0o755)
        path.chmod(0)
        with unprivileged(), pytest.raises(SystemExit) as ended:
            main(["tap", *words, root])
        out, err = capfd.readouterr()
    assert (ended.value.code, out) == (code, "")
    assert err.startswith(f"framegate: {root} cannot be read: [Errno 13] Permission denied")
    assert len(err.splitlines()) == 1


def test_ends_of_connections_are_lines_that_the_options_about_connections_choose(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.send([b"body"], connection=CONNECTION)
    processor.end(CONNECTION, at_ns=START_NS + SECOND)
    processor.end(CONNECTION + 1, at_ns=START_NS + 2 * SECOND, listener="other", cause="auth_failed", side="upstream", detail="no\nuser")
    processor.flush()
    missing = Gap(connection=NO_CONNECTION, direction=0, reason=REASON_DISK_FULL, listener="main", from_ns=START_NS + 2 * SECOND)
    missing.add(4, 0, START_NS + 2 * SECOND)
    processor.writer.builder.add_end(missing)
    processor.close()
    own, other, lost = lines(run(str(tmp_path)))[-3:]
    assert own.startswith("-- 2023-11-14T22:13:21.000000Z 0-1-5 main 10.0.0.1:536870917 ended after 1.500s, ")
    assert own.endswith(" 3 requests 300 B, 2 responses 200 B: peer_closed (downstream)")
    assert other.startswith("-- 2023-11-14T22:13:22.000000Z 0-1-6 other ")
    assert other.endswith("auth_failed (upstream): no\\nuser")
    assert lost == "-- 2023-11-14T22:13:22.000000Z 4 connections ended without a record: disk_full, main"
    assert lines(run(str(tmp_path), "--connection", "0-1-6", "--listener", "other", "--direction", "response")) == [other]
    assert lines(run(str(tmp_path), "--since", "2023-11-14T22:13:21.5Z")) == [other, lost]
    raw = run(str(tmp_path), "--raw")
    assert (raw.stdout, raw.stderr) == ("body", "")
