"""Frames of SASL among those of a client that is READY, and clients before a handler, who cannot authenticate again."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from framegate.proxy.auth.server import MECHANISMS, SaslServerAuthenticators, SaslServerSettings
from framegate.proxy.network.run import Run
from framegate.proxy.relay.session import first_sasl
from tests.fakes.cases import each_of
from tests.fakes.handled import HandledWorld
from tests.fakes.kafka_frames import request
from tests.fakes.sasl_frames import handshake, handshake_answer, plain_token, token, token_answer
from tests.fakes.world import frame
from tests.proxy.auth.conftest import AuthSource

SESSION_S = 100


def runs(data: bytes, head: int) -> Run:
    """As two reads give it: ``head`` bytes by the first, 0: one read."""
    frames, pos, first = 0, 0, 0
    while pos < len(data):
        pos += 4 + int.from_bytes(data[pos : pos + 4], "big")
        frames += 1
        first = first or pos - head
    if head == 0:
        return Run(None, 0, data, 0, len(data), frames, 0)
    return Run([data[:head]], head, data[head:], first, len(data) - head, frames, 0)


@each_of("head", [0, 1, 3, 5, 6, 7])
def test_the_first_frame_of_sasl_is_found_however_it_was_read(head: int) -> None:
    other, begins, goes_on = frame(b"\0\3xxxx"), frame(handshake("PLAIN")), frame(token(b""))
    for data, wanted in (
        (other, (-1, 0)),
        (begins, (0, 17)),
        (goes_on + begins, (0, 36)),
        (other + other + begins, (2, 17)),
        (other + frame(b"") + frame(b"\0") + goes_on, (3, 36)),
    ):
        assert tuple(map(int, first_sasl(runs(data, head)))) == wanted


@pytest.fixture
def enter() -> Iterator[Callable[..., tuple[HandledWorld, socket.socket]]]:
    """Makes worlds with handlers, each with a client whose session of 100 s began two seconds ago."""
    worlds: list[HandledWorld] = []

    def build(*, directions: tuple[str, ...] = ("request", "response"), **options: Any) -> tuple[HandledWorld, socket.socket]:
        settings = SaslServerSettings(MECHANISMS, SESSION_S * 1000, reauthenticates=False)
        world = HandledWorld("kafka", authenticators=SaslServerAuthenticators(settings, AuthSource()), **options)
        worlds.append(world)
        world.process(directions=directions)
        client, pair = world.client()
        client.sendall(frame(handshake("PLAIN")))
        assert world.read(client, len(frame(handshake_answer(*MECHANISMS)))) == frame(handshake_answer(*MECHANISMS))
        client.sendall(frame(token(plain_token())))
        assert world.read(client, len(frame(token_answer()))) == frame(token_answer()), "a client that cannot authenticate again gets no time for it"
        world.until(lambda: pair.state.value == "open")
        world.pass_time(2)
        return world, client

    yield build
    for world in worlds:
        world.close()


@pytest.mark.parametrize(
    ("seconds", "sent", "cause", "detail"),
    [
        (SESSION_S, request(3, 9, 1, b"x"), "session_expired", "a request of a client that did not authenticate again"),
        (5, frame(handshake("PLAIN")), "auth_failed", "SASL on a listener without re-authentication"),
        (5, frame(token(b"")), "auth_failed", "SASL on a listener without re-authentication"),
    ],
)
def test_before_a_handler_clients_cannot_authenticate_again(
    enter: Callable[..., tuple[HandledWorld, socket.socket]], seconds: int, sent: bytes, cause: str, detail: str
) -> None:
    world, client = enter()
    world.pass_time(seconds)
    client.sendall(sent)
    world.ended(client)
    world.pass_time(1.1)
    assert (world.row["cause"], world.row["detail"]) == (cause, detail)


def test_before_a_handler_of_answers_no_piece_of_a_frame_of_sasl_is_forwarded(enter: Callable[..., tuple[HandledWorld, socket.socket]]) -> None:
    world, client = enter(upstream=True, cut_requests=True, directions=("response",))
    upstream, _ = world.server.accept()
    world.sockets.append(upstream)
    client.sendall(frame(token(bytes(400_000), version=1)))
    assert world.ended(upstream) == b""
    world.pass_time(1.1)
    assert (world.row["cause"], world.row["side"]) == ("auth_failed", "downstream")
