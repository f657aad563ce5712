import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from framegate.control.fleet.lost_connections import end_cause, lost_connection_row
from framegate.control.fleet.processor import AssignedConnection, Processor
from framegate.control.service.convert import channel_message
from framegate.proxy.network.connection_id import make_connection_id
from framegate.proxy.server.link import Handover
from tests.fakes.fleet import fleet


def run(scenario: Callable[[Processor], Awaitable[None]]) -> None:
    async def main() -> None:
        async with fleet(1) as made:
            await scenario(made.supervisor.running[0])

    asyncio.run(main())


@pytest.mark.parametrize(("reason", "cause", "words"), [("died", "processor_died", "died"), ("stop", "drain_timeout", "was stopped by force")])
def test_a_row_says_who_it_was_and_what_is_not_known(reason: str, cause: str, words: str) -> None:
    async def scenario(processor: Processor) -> None:
        processor.kill(reason)
        await processor.ended
        given = AssignedConnection(Handover(time.monotonic_ns() - 2_000_000_000, 2, "a", "192.0.2.1:7"), make_connection_id(0, 5, 42))
        row = lost_connection_row(processor, given, "u")
        assert end_cause(processor) == row["cause"] == cause
        assert row["detail"] == f"the processor {words}, exit code -9; what had passed is not known"
        assert row["closed_ns"] - row["opened_ns"] == pytest.approx(2e9, abs=1e9)
        message = channel_message(row)
        assert (message.id, message.peer_address, message.listener, message.upstream) == ("0-5-42", "192.0.2.1:7", "a", "u")
        assert not message.HasField("request")
        assert not message.HasField("response")
        assert not message.close.HasField("lost_bytes")

    run(scenario)
