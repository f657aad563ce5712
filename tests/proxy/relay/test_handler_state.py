"""The five mute states: every cell, and what the facts come to."""

import pytest

from proxy.errors import IllegalTransitionError
from proxy.network import mute
from proxy.relay.handler_state import TRANSITIONS, HandlerEvent, HandlerState, ResponseState

FACTS = {
    HandlerState.NOT_MUTED: (0, False, False),
    HandlerState.MUTED: (mute.HANDLER, False, False),
    HandlerState.PENDING: (mute.HANDLER, True, False),
    HandlerState.THROTTLED: (mute.THROTTLE, False, True),
    HandlerState.THROTTLED_AND_PENDING: (mute.HANDLER | mute.THROTTLE, True, True),
}
KAFKA = """
NOT_MUTED             MUTED                 NOT_MUTED             -        -          -                     -
MUTED                 MUTED                 NOT_MUTED             PENDING  -          -                     -
PENDING               PENDING               PENDING               -        MUTED      THROTTLED_AND_PENDING -
THROTTLED             THROTTLED             THROTTLED             -        -          -                     MUTED
THROTTLED_AND_PENDING THROTTLED_AND_PENDING THROTTLED_AND_PENDING -        THROTTLED  -                     PENDING
"""
CELLS = [
    (HandlerState[row[0]], event, None if word == "-" else HandlerState[word])
    for row in (line.split() for line in KAFKA.split("\n") if line)
    for event, word in zip(HandlerEvent, row[1:], strict=True)
]


def at(state: HandlerState) -> tuple[ResponseState, int]:
    causes, pending, throttled = FACTS[state]
    responses = ResponseState()
    responses.pending, responses.throttled = pending, throttled
    assert responses.state(causes) is state
    return responses, causes


@pytest.mark.parametrize(("state", "event", "after"), CELLS)
def test_every_cell(state: HandlerState, event: HandlerEvent, after: HandlerState | None) -> None:
    """Number 23; of 24 to 26 and 28 the cells."""
    responses, causes = at(state)
    if after is None:
        with pytest.raises(IllegalTransitionError):
            responses.apply(event, causes)
        assert responses.state(causes) is state, "nothing changes"
    else:
        assert responses.apply(event, causes) is after
        assert (responses.pending, responses.throttled) == FACTS[after][1:]
        assert TRANSITIONS[state, event] is after


def test_there_are_thirty_cells() -> None:
    assert len(CELLS) == len(HandlerState) * len(HandlerEvent) == 30


@pytest.mark.parametrize("cause", [mute.ADMIN, mute.PEER, mute.TAP, mute.DRAIN, mute.MEMORY])
def test_any_cause_mutes(cause: int) -> None:
    assert ResponseState().state(cause) is HandlerState.MUTED
