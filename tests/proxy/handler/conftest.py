"""What tests of handlers share."""

import asyncio
from collections.abc import Callable


async def until(done: Callable[[], object]) -> None:
    """Let the loop turn until it has come to that."""
    while not done():
        await asyncio.sleep(0)
