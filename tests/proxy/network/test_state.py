"""framegate.proxy.network.state: every state meets every event."""

import pytest

from framegate.proxy.errors import IllegalTransitionError
from framegate.proxy.network.state import TRANSITIONS, ChannelEvent, ChannelState, next_state
from tests.fakes.cases import each_of


@each_of("event", ChannelEvent)
@each_of("state", ChannelState)
def test_every_state_meets_every_event(state: ChannelState, event: ChannelEvent) -> None:
    expected = TRANSITIONS.get((state, event))
    if expected is None:
        with pytest.raises(IllegalTransitionError):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


def test_a_close_is_legal_until_it_has_happened() -> None:
    for state in ChannelState:
        assert ((state, ChannelEvent.CLOSE) in TRANSITIONS) == (state is not ChannelState.CLOSED)


def test_both_ends_in_either_order_come_to_the_same() -> None:
    first = next_state(next_state(ChannelState.READY, ChannelEvent.SHUT), ChannelEvent.END_OF_STREAM)
    second = next_state(next_state(ChannelState.READY, ChannelEvent.END_OF_STREAM), ChannelEvent.SHUT)
    assert first is second is ChannelState.ENDED


def test_every_state_can_be_reached() -> None:
    assert {ChannelState.CONNECTING, *TRANSITIONS.values()} == set(ChannelState)
