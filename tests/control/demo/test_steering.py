"""The demo's calls, over a real socket to the real service on a fake plane."""

import asyncio

import grpc
import pytest

from control.demo.steering import Steering, cause_text
from control.gen.framegate.control.v1.channel_service_pb2 import CAUSE_FRAME_TOO_LARGE, MuteCause
from tests.fakes.plane import channel_row, closed_row
from tests.fakes.serving import Serving, run


def steered(at: Serving, listener: str = "kafka") -> Steering:
    return Steering(at.service.address, listener)


def test_a_channel_is_found_by_its_clients_port_muted_and_unmuted() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(*(channel_row(f"0-1-{number}", peer=f"127.0.0.1:{5000 + number}") for number in range(1, 800)))

        def act() -> None:
            with steered(at) as steering:
                found = steering.find(5799)
                assert found is not None
                assert steering.find(4999) is None
                steering.mute(found.id, "why")
                assert list(steering.describe(found.id).mute_causes) == [MuteCause.MUTE_CAUSE_ADMIN]
                steering.unmute(found.id, "why not")
                assert not steering.describe(found.id).mute_causes
                assert steering.open_connection_count() >= 0

        await asyncio.to_thread(act)
        assert [(asked[0], asked[3]) for asked in at.plane.asked] == [("mute", "why"), ("unmute", "why not")]

    run(body)


def test_limit_and_pool_are_read_and_changed() -> None:
    async def body(at: Serving) -> None:
        def act() -> None:
            with steered(at, "plain") as steering:
                steering.set_limit(12345)
                assert steering.limit() == 12345
                steering.set_pool_size(512 << 20)
                assert steering.pool().size_bytes == 512 << 20
                assert len(steering.pool().shares) == 2
                assert steering.processor_pids() == [100, 101]

        await asyncio.to_thread(act)
        assert at.plane.limits == {"kafka": 100 << 20, "plain": 12345}

    run(body)


def test_a_refused_frame_is_found_among_the_closed() -> None:
    async def body(at: Serving) -> None:
        at.plane.tell(closed_row("0-1-7", "frame_too_large", peer="127.0.0.1:6000"))

        def act() -> None:
            with steered(at) as steering:
                closed = steering.find_closed(6000)
                assert closed is not None
                assert cause_text(closed.close.cause) == "frame_too_large"
                assert steering.find_closed(6001) is None

        await asyncio.to_thread(act)

    run(body)


def test_a_call_that_fails_raises() -> None:
    async def body(at: Serving) -> None:
        def act() -> None:
            with steered(at, "nobody") as steering, pytest.raises(grpc.RpcError):
                steering.limit()

        await asyncio.to_thread(act)

    run(body)


def test_causes_have_the_words_of_log_and_metrics() -> None:
    assert cause_text(CAUSE_FRAME_TOO_LARGE) == "frame_too_large"
