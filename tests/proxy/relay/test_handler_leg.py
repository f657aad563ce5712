"""Frames that go to handlers, over real sockets, to a process whose every reply is the test's."""

from collections.abc import Callable, Iterator

import pytest

from proxy.handler import wire
from proxy.network import mute
from tests.fakes.handled import HandledWorld, channel_of, leg_of
from tests.fakes.world import frame

Make = Callable[..., HandledWorld]


@pytest.fixture
def make() -> Iterator[Make]:
    worlds: list[HandledWorld] = []

    def build(*args: object, **options: object) -> HandledWorld:
        worlds.append(HandledWorld(*args, **options))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


def test_a_request_is_answered(make: Make) -> None:
    """Number 159: a plain request, echoed."""
    world = make()
    process = world.process()
    client, pair = world.served()
    client.sendall(frame(b"hello"))
    asked = process.one()
    assert (asked.direction, asked.sequence, asked.header, asked.body) == (0, 0, b"\0\0\0\x05", b"hello")
    assert process.opened[asked.connection]["upstream"] is False
    assert channel_of(pair).mute_causes == mute.HANDLER
    process.reply(asked, wire.ANSWER, b"HELLO!")
    assert world.read(client, 10) == frame(b"HELLO!")
    assert channel_of(pair).mute_causes == 0
    client.sendall(frame(b"again"))
    asked = process.one()
    assert asked.sequence == 1
    process.reply(asked, wire.ANSWER, b"")
    assert world.read(client, 4) == frame(b"")
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["upstream"], world.row["endpoint"]) == ("peer_closed", "", "")
    assert (world.row["frames"], world.row["lost"]["bytes"]) == ({"request": 2, "response": 2}, 0)
    process.settle()
    assert process.closed == [asked.connection]
    assert leg_of  # used below
