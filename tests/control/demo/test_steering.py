"""The demo's calls, over a real socket to the real service on a fake plane."""

import asyncio
from collections.abc import Callable

import grpc
import pytest

from framegate.control.demo.steering import Metrics, Steering, cause_text
from framegate.control.v1.channel_service_pb2 import MuteCause
from tests.fakes.plane import FakePlane, channel_row, closed_row
from tests.fakes.serving import Serving, run


def steered(listener: str, act: Callable[[Steering], None], prepare: Callable[[FakePlane], None] = lambda plane: None) -> FakePlane:
    """Run calls on a thread beside the service; the plane they reached."""
    planes = []

    async def body(at: Serving) -> None:
        planes.append(at.plane)
        prepare(at.plane)

        def calls() -> None:
            with Steering(at.service.address, listener) as steering:
                act(steering)

        await asyncio.to_thread(calls)

    run(body)
    return planes[0]


def test_a_channel_is_found_by_its_clients_port_muted_and_unmuted() -> None:
    def act(steering: Steering) -> None:
        found = steering.find(5799)
        assert found is not None
        assert steering.find(4999) is None
        steering.mute(found.id, "why")
        assert list(steering.describe(found.id).mute_causes) == [MuteCause.MUTE_CAUSE_ADMIN]
        steering.unmute(found.id, "why not")
        assert not steering.describe(found.id).mute_causes
        assert steering.open_connection_count() >= 0

    rows = [channel_row(f"0-1-{number}", peer=f"127.0.0.1:{5000 + number}") for number in range(1, 800)]
    plane = steered("kafka", act, lambda plane: plane.add(*rows))
    assert [(asked[0], asked[2]) for asked in plane.asked] == [("mute", "why"), ("unmute", "why not")]


def test_limit_and_pool_are_read_and_changed() -> None:
    def act(steering: Steering) -> None:
        steering.set_limit(12345)
        assert steering.limit() == 12345
        steering.set_pool_size(512 << 20)
        assert (steering.pool().size_bytes, len(steering.pool().shares)) == (512 << 20, 2)
        assert steering.processor_pids() == [100, 101]

    assert steered("plain", act).limits == {"kafka": 100 << 20, "plain": 12345}


def test_a_refused_frame_is_found_among_the_closed_with_the_word_of_log_and_metrics() -> None:
    def act(steering: Steering) -> None:
        closed = steering.find_closed(6000)
        assert closed is not None
        assert cause_text(closed.close.cause) == "frame_too_large"
        assert steering.find_closed(6001) is None

    steered("kafka", act, lambda plane: plane.tell(closed_row("0-1-7", "frame_too_large", peer="127.0.0.1:6000")))


def test_a_call_that_fails_raises() -> None:
    def act(steering: Steering) -> None:
        with pytest.raises(grpc.RpcError):
            steering.limit()

    steered("nobody", act)


TEXT = """# HELP framegate_frame_count_total Frames.
# TYPE framegate_frame_count_total counter
framegate_frame_count_total{framegate_side="upstream",network_io_direction="transmit"} 40.0
framegate_frame_count_total{framegate_side="upstream",network_io_direction="receive"} 3
framegate_frame_count_total{framegate_side="downstream",network_io_direction="transmit"} 2e3
framegate_frame_rejected_total{framegate_reason="frame_too_large",other="a \\"b\\", c"} 1
framegate_frame_rejected_total{framegate_reason="negative_size"} 0
"""


def test_sums_over_the_samples_that_have_the_labels() -> None:
    metrics = Metrics(TEXT)
    assert metrics.sum("framegate_frame_count_total", framegate_side="upstream") == 43
    assert metrics.sum("framegate_frame_count_total", framegate_side="upstream", network_io_direction="transmit") == 40
    assert (metrics.sum("framegate_frame_count_total"), metrics.sum("not_there")) == (2043, 0)
    assert metrics.by("framegate_frame_rejected_total", "framegate_reason") == {"frame_too_large": 1}, "zeroes are left out"
