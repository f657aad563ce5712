"""How a job takes signals."""

import signal
from pathlib import Path

import pytest

from framegate.proxy.pipeline.run import run_pipeline
from framegate.proxy.pipeline.settings import PipelineSettings
from framegate.proxy.pipeline.stopping import StoppedError, Stopping


def test_a_signal_asks_for_an_end_in_order_once_and_only_while_there_is_one() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        early = Stopping()
        with pytest.raises(StoppedError):
            early.on_signal(signal.SIGINT, None)
        assert (early.word, early.exit_code) == ("interrupted", 130)
        stopping = Stopping()
        stopping.in_order = True
        stopping.on_signal(signal.SIGINT, None)
        assert stopping.asked.is_set()
        with pytest.raises(StoppedError):
            stopping.on_signal(signal.SIGTERM, None)
        assert (stopping.word, stopping.exit_code) == ("terminated", 143)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "what ends at once is not interrupted in its cleaning up"
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)


def test_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_pipeline(PipelineSettings(source=tmp_path / "nowhere", output=tmp_path / "out"))
    assert signal.getsignal(signal.SIGTERM) is before
