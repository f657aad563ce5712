"""framegate.proxy.network.tls_state: every state, every event."""

import pytest

from framegate.proxy.errors import IllegalTransitionError
from framegate.proxy.network.tls_state import TRANSITIONS, TlsEvent, TlsState, next_state
from tests.fakes.cases import each_of


@each_of("state", TlsState)
@each_of("event", TlsEvent)
def test_every_state_meets_every_event(state: TlsState, event: TlsEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransitionError):
        next_state(state, event)


def test_nobody_is_ready_before_what_says_so_is_out() -> None:
    assert {state for (state, _), after in TRANSITIONS.items() if after is TlsState.UNPROVEN} == {TlsState.FINISHING}
    assert {state for (state, _), after in TRANSITIONS.items() if after is TlsState.READY} == {TlsState.UNPROVEN}


def test_a_failure_is_told_once_its_alert_is_out() -> None:
    assert {state for (state, _), after in TRANSITIONS.items() if after is TlsState.FAILED} == {TlsState.FAILING}
    assert [event for (state, event) in TRANSITIONS if state is TlsState.FAILED] == [TlsEvent.CLOSE]


def test_a_close_is_legal_until_it_has_happened() -> None:
    assert {state for state, event in TRANSITIONS if event is TlsEvent.CLOSE} == set(TlsState) - {TlsState.CLOSED}


def test_every_state_can_be_reached() -> None:
    assert {*TRANSITIONS.values(), TlsState.NEW} == set(TlsState)
