"""framegate.proxy.auth.server_state: every state, every event."""

import pytest

from framegate.proxy.auth.server_state import TRANSITIONS, ServerEvent, ServerState, next_state
from framegate.proxy.errors import IllegalTransitionError
from tests.fakes.cases import each_of


@each_of("state", ServerState)
@each_of("event", ServerEvent)
def test_a_pair_without_a_row_is_a_bug(state: ServerState, event: ServerEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransitionError):
        next_state(state, event)


def test_only_a_proof_leads_to_complete() -> None:
    assert {event for (_, event), state in TRANSITIONS.items() if state is ServerState.COMPLETE} == {ServerEvent.PROVED}
    assert {state for state, event in TRANSITIONS if event is ServerEvent.PROVED} == {ServerState.AUTHENTICATE, ServerState.RAW}


@each_of("last", [ServerState.COMPLETE, ServerState.OTHER_MECHANISM])
def test_where_it_ends(last: ServerState) -> None:
    assert not [event for state, event in TRANSITIONS if state is last]


def test_every_state_can_be_reached() -> None:
    assert {*TRANSITIONS.values(), ServerState.INITIAL, ServerState.REAUTHENTICATE} == set(ServerState)
