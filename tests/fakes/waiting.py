"""Waiting for what another thread or process will do."""

import time
from collections.abc import Callable
from typing import Any


def until(found: Callable[[], Any], what: object = "it did not come true", timeout: float = 10.0) -> Any:
    """What ``found`` gives, as soon as it is true; ``what`` is the message when it is not in time."""
    deadline = time.monotonic() + timeout
    while not (result := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
    return result
