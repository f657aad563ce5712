"""The demo's frames and its histogram of times."""

import json
import random
import zlib

import pytest

from framegate.control.demo.load import BODY_HEADER_SIZE, FRAME_HEADER, Latency, Payloads, Upstream, frame
from framegate.proxy.handler.load import load
from tests.fakes.configuration import faults


def test_frames_say_where_they_belong_and_are_what_the_receiver_expects() -> None:
    whole = frame(7, 2**40, b"payload")
    assert FRAME_HEADER.unpack_from(whole) == (len(whole) - 4, 7, 2**40, zlib.crc32(b"payload"))
    assert whole[4 + BODY_HEADER_SIZE :] == b"payload"
    payloads, same = Payloads(), Payloads()
    assert payloads.frames(3, 10, 5) == b"".join(frame(3, sequence, same.of(3, sequence)) for sequence in range(10, 15))


def test_sizes_are_mixed() -> None:
    payloads = Payloads()
    sizes = [len(payloads.of(0, sequence)) + BODY_HEADER_SIZE for sequence in range(1024)]
    assert {100, 512, 4096, 65536} == set(sizes)
    assert 250 < sum(sizes) / len(sizes) < 350


def test_quantiles_are_exact_to_two_digits() -> None:
    source = random.Random(5)
    latency, times = Latency(), sorted(source.randrange(50, 500_000) for _ in range(2000))
    assert latency.figures() == {"frames": 0, "p50_us": 0, "p99_us": 0}
    for time_us in times:
        latency.add(time_us * 1000, 1)
    figures = latency.figures()
    assert figures["frames"] == 2000
    for share, found in ((0.5, figures["p50_us"]), (0.99, figures["p99_us"])):
        true = times[int(share * 2000) - 1]
        assert abs(found - true) <= 0.051 * true


def test_every_frame_comes_back_and_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    upstream = Upstream()
    for body in (b"", b"x" * 1000, b"last"):
        assert upstream.handle(body, None) == body  # type: ignore[arg-type]
    upstream.stop()
    assert json.loads(capsys.readouterr().out) == {"frames": 3, "bytes": 1004 + 12}


def test_it_can_be_a_handler() -> None:
    found = load("framegate.control.demo.load:Upstream")
    assert found.description.startswith("Answers every frame with itself")
    listener = {"name": "u", "address": "127.0.0.1:0", "handler": "framegate.control.demo.load:Upstream", "max_receive_size": "1MiB"}
    assert faults({"node": "n", "processors": 1, "admin": {"address": "unix:/tmp/none.sock"}, "listeners": [listener]}) == []
