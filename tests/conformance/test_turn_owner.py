"""What turns rely on, of who waits for one: the read half of a channel, and the one that writes down that it was told."""

from collections.abc import Iterator
from typing import Final

import pytest

from proxy.network.read_half import _ReadTurn
from proxy.network.turns import TurnOwner
from tests.fakes.conformance import Kind
from tests.fakes.network import frame, net_bench
from tests.fakes.turns import Owner

INTERFACE: Final = TurnOwner


def read_half() -> Iterator[TurnOwner]:
    with net_bench() as bench:
        channel, peer = bench.ready_pair()
        peer.sendall(frame(100_000)[:50_000])
        yield _ReadTurn(channel.read_half)
        assert channel.bytes_received == 0, "nothing is read where a turn is given"
        assert channel.is_open


def owner() -> Iterator[TurnOwner]:
    told: list[Owner] = []
    made = Owner(told)
    yield made
    assert told == [made] * len(told)


KINDS: Final = {"read half": Kind(_ReadTurn, read_half), "owner": Kind(Owner, owner)}


@pytest.fixture(params=KINDS)
def waits(request: pytest.FixtureRequest) -> Iterator[TurnOwner]:
    yield from KINDS[request.param].make()


def test_what_it_says_of_its_frame_is_yes_or_no_and_asking_changes_nothing(waits: TurnOwner) -> None:
    for ask in (waits.is_dry, waits.is_held_up):
        said = ask()
        assert type(said) is bool
        assert ask() == said


def test_a_turn_may_be_given_at_any_time_and_does_no_reading(waits: TurnOwner) -> None:
    waits.turn_given()
    waits.turn_given()
    assert waits.is_held_up() is False
