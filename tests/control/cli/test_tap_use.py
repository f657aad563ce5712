"""``framegate tap replay`` and ``tap export``, against upstreams with real sockets."""

import asyncio
import json
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.control.demo.certificates import create
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap.log_reader import walk
from tests.fakes.captured import MS, SILENT, Upstream, answered, asked, broker, correlation_of, exchange, kafka_log, plain_log
from tests.fakes.cli import NO_FILE_GROWS, run_cli, start_cli
from tests.fakes.tap_files import flip, segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame, refusing_port


def replay(log: Path | str, upstream: ScriptedUpstream, *words: str) -> Result:
    return CliRunner().invoke(main, ["tap", "replay", str(log), "--to", upstream.address, "--timeout", "5s", *words])


def report(log: Path | str, upstream: ScriptedUpstream, *words: str) -> tuple[int, dict[str, Any]]:
    result = replay(log, upstream, "--output", "json", *words)
    return result.exit_code, json.loads(result.stdout)


def test_each_connection_is_opened_once_and_its_requests_are_sent_as_they_were(tmp_path: Path) -> None:
    kafka_log(tmp_path, exchanges=4, connections=2)
    with Upstream(broker) as upstream:
        code, found = report(tmp_path, upstream)
    assert (code, found["equal"], found["connections"], found["requests"], found["not_sent"], found["failures"]) == (0, True, 2, 4, {}, {})
    assert sorted(upstream.received) == [asked(number) for number in range(4)]
    assert upstream.connections == 2
    (row,) = found["apis"]
    assert (row["api"], row["requests"], row["equal"], row["unanswered"], row["captured_p50_us"], row["captured_p99_us"]) == (
        "ApiVersions",
        4,
        4,
        0,
        500,
        500,
    )
    assert row["replayed_p99_us"] >= row["replayed_p50_us"] > 0


def closing(body: bytes) -> bytes | None:
    return None if correlation_of(body) == 1 else broker(body)


def slow(body: bytes) -> bytes:
    time.sleep(0.02)
    return broker(body)


@pytest.mark.parametrize(
    ("reply", "results"),
    [
        (lambda body: answered(correlation_of(body), 35), {"error_code": 3}),
        (lambda body: answered(correlation_of(body), 35, 2), {"error_code": 3}),
        (lambda body: answered(correlation_of(body), 0, 2), {"size": 3}),
        (lambda body: broker(body)[:-1] + b"\x08", {"content": 3}),
        (lambda body: SILENT if correlation_of(body) == 2 else broker(body), {"equal": 2, "unanswered": 1}),
        (closing, {"equal": 1, "unanswered": 2}),
        (lambda body: answered(correlation_of(body) + 7), {"unanswered": 3}),
    ],
)
def test_what_differs_is_counted_and_the_exit_code_is_6(tmp_path: Path, reply: Callable[[bytes], bytes | None], results: dict[str, int]) -> None:
    kafka_log(tmp_path, exchanges=3, connections=1)
    with Upstream(reply) as upstream:
        code, found = report(tmp_path, upstream, "--timeout", "500ms" if "unanswered" in results else "5s")
    row = next(row for row in found["apis"] if row["api"] == "ApiVersions")
    counts = {name: row[name] for name in ("equal", "same_size", "error_code", "size", "content", "unanswered") if row[name]}
    assert (code, found["equal"], counts) == (6, False, results)
    assert row["error_codes"] == ([{"captured": 0, "now": 35, "answers": 3}] if "error_code" in results else [])


def test_a_slow_upstream_changes_the_latency_only(tmp_path: Path) -> None:
    kafka_log(tmp_path, exchanges=3, connections=3)
    with Upstream(slow) as upstream:
        code, found = report(tmp_path, upstream)
        table = replay(tmp_path, upstream).stdout
    (row,) = found["apis"]
    assert (code, row["equal"], row["replayed_p50_us"] >= 20_000) == (0, 3, True)
    assert table.splitlines()[0].split()[:3] == ["API", "REQUESTS", "EQUAL"]
    assert table.splitlines()[1].split()[:3] == ["ApiVersions", "3", "3"]
    assert table.splitlines()[-1].startswith("3 requests on 3 connections, ")
    assert table.splitlines()[-1].endswith("no answer differs")


def test_requests_after_the_upstream_closed_are_not_sent(tmp_path: Path) -> None:
    kafka_log(tmp_path, exchanges=3, connections=1)
    with Upstream(closing) as upstream:
        code, found = report(tmp_path, upstream, "--speed", "max")
    assert (code, found["failures"], found["not_sent"]) == (6, {"the upstream closed the connection": 1}, {"connection_failed": 1})


@pytest.mark.parametrize(("speed", "apart_ms", "least_s"), [("1", 100, 0.3), ("10", 1000, 0.3), ("max", 3_600_000, 0.0)])
def test_requests_keep_their_distance_divided_by_the_speed(tmp_path: Path, speed: str, apart_ms: int, least_s: float) -> None:
    kafka_log(tmp_path, exchanges=4, connections=2, apart_ms=apart_ms)
    times: list[float] = []
    begun_s = time.monotonic()
    with Upstream(lambda body: times.append(time.monotonic()) or broker(body)) as upstream:  # type: ignore[func-returns-value]
        assert report(tmp_path, upstream, "--speed", speed)[0] == 0
    assert times[-1] - begun_s >= least_s


def test_max_has_no_more_requests_in_flight_than_were_captured(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path)
    for number in range(3):
        exchange(log, number, at_ns=START_NS + number * MS)
    log.send([asked(3), asked(4)], protocol="kafka", at_ns=START_NS + 4 * MS)
    log.flush()
    log.close()
    ahead: list[int] = []

    def script(sock: Any) -> None:
        for _ in range(3):
            body = read_frame(sock)
            sock.settimeout(0.02)
            try:
                ahead.append(len(sock.recv(1)))
            except TimeoutError:
                sock.settimeout(None)
            sock.sendall(frame(broker(body)))
        both = [read_frame(sock), read_frame(sock)]  # in flight together
        sock.sendall(b"".join(frame(broker(body)) for body in both))

    with ScriptedUpstream(script) as upstream:
        code, found = report(tmp_path, upstream, "--speed", "max")
    assert (code, ahead, found["apis"][0]["equal"], found["requests"]) == (0, [], 3, 5)


RULES = {
    "cut": TapRule(name="r", max_frame_bytes=4),
    "redacted": TapRule(name="r", blank=("0-3",)),
    "hash_only": TapRule(name="r", capture="hash"),
    "lengths_only": TapRule(name="r", capture="lengths"),
    "sampled": TapRule(name="r", sample_connections=0.0),
}


@pytest.mark.parametrize("reason", RULES)
def test_a_frame_that_is_not_as_it_passed_is_never_sent(tmp_path: Path, reason: str) -> None:
    plain_log(tmp_path, [b"first", b"second"], RULES[reason])
    with Upstream(lambda body: body) as upstream:
        code, found = report(tmp_path, upstream)
    assert (code, found["requests"], found["not_sent"], upstream.connections) == (1, 0, {reason: 2}, 0)


def test_what_is_whole_between_damaged_frames_is_sent(tmp_path: Path) -> None:
    plain_log(tmp_path, [b"1234", b"12345", b"4321"], RULES["cut"])
    with Upstream(lambda body: body) as upstream:
        code, found = report(tmp_path, upstream)
    assert (code, upstream.received, found["not_sent"], found["apis"][0]["equal"]) == (0, [b"1234", b"4321"], {"cut": 1}, 2)


def test_credentials_and_lost_requests_are_counted(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path, flush_size=64 << 10, queue_size=64 << 10)
    log.sent[1, "request"] = 2  # no rule took the first ones
    log.send([b"secret", b"open"], sensitive=[0])
    for _ in range(4):
        log.send([bytes(40_000)])
    log.flush()
    log.close()
    with Upstream(lambda body: body) as upstream:
        code, found = report(tmp_path, upstream)
    lost = found["not_sent"]["queue_full"]
    assert (code, found["requests"], lost > 0) == (0, 1 + 4 - lost, True)
    assert found["not_sent"] == {"withheld": 1, "not_recorded": 2, "queue_full": lost}
    assert found["apis"][0]["not_captured"] == found["requests"]


def test_options_select_requests(tmp_path: Path) -> None:
    kafka_log(tmp_path, exchanges=4, connections=2, apart_ms=10)
    for words, sent in (
        (("--connection", "0-0-1"), {0, 2}),
        (("--api", "Fetch"), set()),
        (("--client", "a*"), {0, 1, 2, 3}),
        (("--min-size", "1KiB"), set()),
        (("--listener", "other"), set()),
        (("--since", "2023-11-14T22:13:20.02Z"), {2, 3}),
        (("--until", "2023-11-14T22:13:20.01Z"), {0}),
    ):
        with Upstream(broker) as upstream:
            code, found = report(tmp_path, upstream, *words)
        assert ({correlation_of(body) for body in upstream.received}, code, found["not_sent"]) == (sent, 0 if sent else 1, {}), words


def test_wrong_words_an_unreachable_upstream_and_missing_streams_have_their_codes(tmp_path: Path) -> None:
    kafka_log(tmp_path)
    with Upstream(broker) as upstream:
        for words in (["--speed", "0"], ["--speed", "fast"], ["--speed", "nan"], ["--framing", "header"], ["--tls", str(tmp_path / "none")]):
            assert replay(tmp_path, upstream, *words).exit_code == 2, words
        assert replay(tmp_path, upstream, "--stream", "edge.7.*").exit_code == 3
        assert replay(tmp_path, upstream, "--tls", str(tmp_path)).exit_code == 1
        assert upstream.connections == 0
    with refusing_port() as port:
        words = ["tap", "replay", str(tmp_path), "--output", "json", "--to"]
        refused = CliRunner().invoke(main, [*words, f"127.0.0.1:{port}"])
        assert CliRunner().invoke(main, [*words, "unix:x"]).exit_code == 2
    found = json.loads(refused.stdout)
    assert (refused.exit_code, found["connections"], found["not_sent"], sum(found["failures"].values())) == (5, 0, {"connection_failed": 4}, 2)


def test_a_damaged_log_is_replayed_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path)
    for number in range(3):
        exchange(log, number)
        log.flush()
    log.close()
    (path,) = segment_files(tmp_path)
    flip(path, list(walk(str(tmp_path), log.stream))[1].position + 200)
    with Upstream(broker) as upstream:
        result = replay(tmp_path, upstream, "--output", "json")
    assert (result.exit_code, [correlation_of(body) for body in upstream.received]) == (1, [0, 2])
    assert "its body's CRC does not fit" in result.stderr
    assert json.loads(result.stdout)["not_sent"] == {"not_recorded": 1}
    exported = CliRunner().invoke(main, ["tap", "export", str(tmp_path), "--pcapng", str(tmp_path / "packets")])
    assert (exported.exit_code, "4 frames in " in exported.stderr) == (1, True)


def test_tls_takes_the_authority_and_the_certificate_of_a_folder(tmp_path: Path) -> None:
    files = create(tmp_path / "made", hosts=("localhost", "127.0.0.1"))
    folder = tmp_path / "tls"
    folder.mkdir()
    for name, path in (("ca.crt", files.ca), ("tls.crt", files.client), ("tls.key", files.client_key)):
        (folder / name).write_bytes(path.read_bytes())
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    server.load_cert_chain(files.server, files.server_key)
    server.verify_mode = ssl.CERT_REQUIRED
    log = kafka_log(tmp_path / "tap", exchanges=1)

    def script(sock: Any) -> None:
        with server.wrap_socket(sock, server_side=True) as secure:
            secure.sendall(frame(broker(read_frame(secure))))
            secure.recv(1)

    with ScriptedUpstream(script) as upstream:
        result = CliRunner().invoke(main, ["tap", "replay", str(log), "--to", f"localhost:{upstream.port}", "--tls", str(folder)])
        assert (result.exit_code, "no answer differs" in result.stdout) == (0, True), result.output
        assert replay(log, upstream).exit_code == 6, "it was no TLS"


@pytest.mark.slow
def test_ctrl_c_prints_what_was_done(tmp_path: Path) -> None:
    kafka_log(tmp_path, exchanges=2, connections=1, apart_ms=3_600_000)
    command = ("tap", "replay", str(tmp_path), "--output", "json", "--to")
    with Upstream(broker) as upstream, start_cli(*command, upstream.address) as process:
        while not upstream.received:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    found = json.loads(out)
    assert (process.returncode, err, found["requests"], found["apis"][0]["unanswered"]) == (130, "framegate: interrupted\n", 1, 0)


def test_ctrl_c_as_a_thread_answers_cancels_after_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka_log(tmp_path, exchanges=1)
    copy = asyncio.futures._copy_future_state  # type: ignore[attr-defined]
    cancelled = []

    def interrupted_copy(source: Any, dest: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        cancelled.append(dest.cancelled())
        copy(source, dest)

    monkeypatch.setattr(asyncio.futures, "_copy_future_state", interrupted_copy)
    with Upstream(broker) as upstream:
        assert replay(tmp_path, upstream).exit_code == 130
    assert cancelled[0] is False


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_2(tmp_path: Path) -> None:
    kafka_log(tmp_path / "tap")
    words = ("tap", "export", str(tmp_path / "tap"), "--pcapng")
    assert run_cli(*words, str(tmp_path / "none" / "file"))[0] == 2
    code, _, err = run_cli(*words, str(tmp_path / "file"), before=NO_FILE_GROWS)
    assert (code, "cannot be written: File too large" in err) == (2, True)
    assert run_cli(*words, str(tmp_path / "file"), "--stream", "none")[0] == 3
    code, _, err = run_cli(*words, str(tmp_path / "file"))
    assert (code, err.startswith("framegate: 8 frames in "), (tmp_path / "file").stat().st_mode & 0o777) == (0, True, 0o640)
