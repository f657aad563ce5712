"""Troubles: made while a block lasts, ended with it, and what they changed put back."""

import contextlib
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from control.demo.telemetry import troubles
from control.demo.telemetry.troubles import TROUBLES

MIB = 1 << 20


class Steering:
    """Limit and pool of a framegate with two processors; ``refuses``: the pool cannot be changed."""

    def __init__(self, refuses: bool = False) -> None:
        self.size, self.largest, self.refuses = 64 * MIB, 4 * MIB, refuses
        self.told: list[tuple[str, int]] = []

    def limit(self) -> int:
        return self.largest

    def pool(self) -> Any:
        return SimpleNamespace(size_bytes=self.size, shares=[1, 2])

    def set_limit(self, size: int) -> None:
        self.told.append(("limit", size))

    def set_pool_size(self, size: int) -> None:
        self.told.append(("pool", size))
        if self.refuses and size < self.size:
            raise PermissionError


class Nobody:
    """A scene whose framegate lets nobody in."""

    def __init__(self, steering: Steering, disk: Path | None = None) -> None:
        self.steering, self.tap_disk = steering, disk
        self.came = threading.Semaphore(0)

    def connect(self, *_: object, **__: object) -> Any:
        self.came.release()
        raise ConnectionRefusedError


def going(name: str, scene: Any) -> contextlib.AbstractContextManager[None]:
    return next(trouble for trouble in TROUBLES if trouble.name == name).going(scene)


@pytest.mark.parametrize("name", ["slow-consumer", "oversized-frames", "wrong-certificate", "pool-exhausted"])
def test_clients_that_are_refused_come_again_until_it_is_over(name: str) -> None:
    scene = Nobody(Steering())
    before = threading.active_count()
    with going(name, scene):
        assert all(scene.came.acquire(timeout=10) for _ in range(2))
    assert threading.active_count() == before


def test_the_pool_is_put_back_and_the_limit_goes_before_it() -> None:
    steering = Steering()
    with going("pool-exhausted", Nobody(steering)):
        assert steering.told == [("limit", MIB), ("pool", 2 * MIB)]
    assert steering.told[2:] == [("pool", 64 * MIB), ("limit", 4 * MIB)]


def test_what_was_changed_is_put_back_when_the_rest_is_refused() -> None:
    steering = Steering(refuses=True)
    with pytest.raises(PermissionError), going("pool-exhausted", Nobody(steering)):
        pass
    assert steering.told[-1] == ("limit", 4 * MIB)


def test_the_filler_goes_with_the_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = threading.Event()
    monkeypatch.setattr(troubles, "fill", lambda path: (path.touch(), filled.set()))
    with going("full-tap", Nobody(Steering(), tmp_path)):
        assert filled.wait(10)
        assert (tmp_path / "filler").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_processor_is_killed_as_by_the_kernel() -> None:
    victim = subprocess.Popen(["sleep", "60"])
    steering = SimpleNamespace(processor_pids=lambda: [victim.pid])
    with going("killed-processor", SimpleNamespace(steering=steering)):
        assert victim.wait(10) == -signal.SIGKILL
