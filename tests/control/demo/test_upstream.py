"""The demo's upstream: it answers every frame with itself, and says at its end what it counted."""

import json

import pytest

from framegate.control.demo.upstream import Upstream
from framegate.proxy.handler.load import load
from tests.fakes.configuration import faults


def test_every_frame_comes_back_and_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    upstream = Upstream()
    for body in (b"", b"x" * 1000, b"last"):
        assert upstream.handle(body, None) == body  # type: ignore[arg-type]
    upstream.stop()
    assert json.loads(capsys.readouterr().out) == {"frames": 3, "bytes": 1004 + 12}


def test_it_can_be_a_handler() -> None:
    found = load("framegate.control.demo.upstream:Upstream")
    assert found.description.startswith("Answers every frame with itself")
    listener = {"name": "u", "address": "127.0.0.1:0", "handler": "framegate.control.demo.upstream:Upstream", "max_receive_size": "1MiB"}
    assert faults({"node": "n", "processors": 1, "admin": {"address": "unix:/tmp/none.sock"}, "listeners": [listener]}) == []
