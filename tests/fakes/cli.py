"""The command line against a real service over a fake plane, which runs on a thread of its own."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from click.testing import CliRunner, Result

from control.cli import main
from tests.fakes.plane import FakePlane
from tests.fakes.serving import serving

__all__ = ["Cli", "served"]


class Cli:
    """Runs commands. Attributes: ``plane``, ``address``."""

    def __init__(self, plane: FakePlane, address: str) -> None:
        self.plane = plane
        self.address = address

    def __call__(self, *words: str) -> Result:
        """Run a command, with FRAMEGATE_ADDRESS set."""
        return CliRunner(env={"FRAMEGATE_ADDRESS": self.address, "COLUMNS": "200"}).invoke(main, words)

    def json(self, *words: str) -> Any:
        """Run a command that must be good, for its JSON."""
        result = self(*words, "--output", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@contextlib.contextmanager
def served() -> Iterator[Cli]:
    """A service for the length of a test."""
    ready, done = threading.Event(), asyncio.Event()
    found: list[Cli] = []
    loop = asyncio.new_event_loop()

    async def body() -> None:
        async with serving() as at_hand:
            found.append(Cli(at_hand.plane, at_hand.service.address))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(body(),))
    thread.start()
    try:
        assert ready.wait(10), "the service did not start"
        yield found[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()
