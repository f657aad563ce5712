"""What a real framegate captured, replayed and exported: from its directory, and from the object store to which it was shipped."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.captured import Upstream, answered, asked, broker, correlation_of
from tests.fakes.framegate import Framegate, run_cli
from tests.fakes.s3 import BUCKET, S3, s3_server
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow
REQUESTS = 6
WHOLE = {"requests": "whole", "responses": "whole"}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with s3_server(monkeypatch) as made:
        yield made


def lines(sock: socket.socket) -> None:
    """Answers each line in upper case."""
    with sock.makefile("rb") as file:
        for line in file:
            sock.sendall(line.upper())


def listener(name: str, protocol: str = "framed", **keys: Any) -> dict[str, Any]:
    return {"name": name, "address": "127.0.0.1:0", "upstream": name, "max_receive_size": "1MiB", "protocol": protocol, **keys}


def capture(folder: Path) -> Path:
    """Two Kafka clients with three requests each, all in flight together, and a client of varint before an upstream of lines."""
    with Upstream(broker) as kafka, ScriptedUpstream(lines) as text:
        upstreams = [
            {"name": "kafka", "endpoints": [kafka.address]},
            {"name": "text", "endpoints": [text.address], "framing": "lines", "max_receive_size": "1MiB"},
        ]
        tap = {"directory": str(folder / "tap"), "rules": [{"name": "all"}]}
        config = {"listeners": [listener("kafka", "kafka"), listener("text", framing="varint", forwarding=WHOLE)], "upstreams": upstreams, "tap": tap}
        with Framegate(folder, {"memory_pool": {"size": "8MiB"}, **config}) as proxy:
            clients = [proxy.connect("kafka"), proxy.connect("kafka")]
            for number in range(REQUESTS):
                clients[number % 2].sendall(frame(asked(number)))
            for number in range(REQUESTS):
                assert read_frame(clients[number % 2]) == answered(number)
            words = proxy.connect("text")
            words.sendall(b"\x05hello\x05world")
            words.settimeout(10)
            assert b"".join(words.recv(1) for _ in range(12)) == b"\x05HELLO\x05WORLD"
    return folder / "tap"


def report(log: str, upstream: ScriptedUpstream, *words: str) -> tuple[int, dict[str, Any]]:
    done = run_cli("tap", "replay", log, "--to", upstream.address, "--output", "json", *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_what_was_captured_is_replayed_and_exported(tmp_path: Path, s3: S3) -> None:
    tap = capture(tmp_path)
    fleet, log = f"s3://{BUCKET}/fleet", str(tap)
    assert run_cli("tap", "ship", log, fleet).returncode == 0
    for source in (log, fleet, f"{fleet}/test"):
        with Upstream(broker) as upstream:
            code, found = report(source, upstream, "--listener", "kafka", "--speed", "max")
        (row,) = found["apis"]
        assert (code, row["equal"], upstream.connections, found["not_sent"]) == (0, REQUESTS, 2, {}), source
        assert sorted(upstream.received) == [asked(number) for number in range(REQUESTS)]
        assert row["captured_p99_us"] > 0
    with Upstream(lambda body: answered(correlation_of(body), 35)) as upstream:
        code, found = report(log, upstream, "--listener", "kafka")
    assert (code, found["apis"][0]["error_code"]) == (6, REQUESTS)
    with ScriptedUpstream(lines) as text:
        code, found = report(log, text, "--listener", "text")
    assert (code, found["requests"], found["apis"][0]["equal"]) == (0, 2, 2)
    files = [tmp_path / "local.pcapng", tmp_path / "fleet.pcapng"]
    for source, path in zip((log, fleet), files, strict=True):
        done = run_cli("tap", "export", source, "--pcapng", str(path))
        assert (done.returncode, f"framegate: {2 * REQUESTS + 4} frames in " in done.stderr) == (0, True), done.stderr
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"HELLO\n" in files[0].read_bytes()


def test_a_log_that_is_written_meanwhile_is_replayed_up_to_where_it_was(tmp_path: Path) -> None:
    """Segments are sealed while it is read, which is done twice."""
    tap = {"directory": str(tmp_path / "tap"), "segment_size": "64KiB", "flush_size": "4KiB", "rules": [{"name": "all"}]}
    stopping = threading.Event()
    sent = before = 0
    with Upstream(broker) as kafka:
        config = {"listeners": [listener("kafka", "kafka")], "upstreams": [{"name": "kafka", "endpoints": [kafka.address]}], "tap": tap}
        with Framegate(tmp_path, {"memory_pool": {"size": "8MiB"}, **config}) as proxy:

            def ask_on() -> None:
                nonlocal sent
                with proxy.connect("kafka") as client:
                    while not stopping.wait(0.001):
                        client.sendall(frame(asked(sent)))
                        assert read_frame(client) == answered(sent)
                        sent += 1

            thread = threading.Thread(target=ask_on)
            thread.start()
            try:
                for segments in (1, 3):
                    until(lambda segments=segments: len(list((tmp_path / "tap").rglob("*.seg"))) >= segments)
                    with Upstream(broker) as upstream:
                        code, found = report(tap["directory"], upstream, "--speed", "max")
                    (row,) = found["apis"]
                    taken = len(upstream.received)
                    assert upstream.received == [asked(number) for number in range(taken)], "all of it, from the begin on, once"
                    assert before < taken <= sent + 1
                    before = taken
                    assert (code, row["equal"] >= taken - 1, found["not_sent"], upstream.connections) == (0, True, {}, 1), found
            finally:
                stopping.set()
                thread.join(30)
            assert proxy.stop() == 0
    assert run_cli("tap", "verify", tap["directory"]).returncode == 0


def test_a_store_that_fails_is_said_and_the_exit_code_is_1(tmp_path: Path, s3: S3) -> None:
    fleet = f"s3://{BUCKET}/fleet"
    assert run_cli("tap", "ship", str(capture(tmp_path)), fleet).returncode == 0
    s3.fault = lambda method, path: 403 if path.endswith(".seg") else None
    for words in (("replay", fleet, "--to", "127.0.0.1:1"), ("export", fleet, "--pcapng", str(tmp_path / "packets"))):
        done = run_cli("tap", *words)
        assert (done.returncode, "cannot be read" in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
