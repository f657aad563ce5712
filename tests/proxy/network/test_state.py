"""framegate.proxy.network.state and the tables of states: every state meets every event."""

import enum
from typing import Any

import pytest

from framegate.proxy.errors import IllegalTransitionError
from framegate.proxy.network import mute, state, tls_state
from framegate.proxy.network.mute import MuteEvent, MuteState
from framegate.proxy.network.state import ChannelEvent, ChannelState, TableEnum, transition
from framegate.proxy.network.tls_state import TlsEvent, TlsState
from framegate.proxy.relay import state as pair_state
from tests.fakes.cases import each_of

Table = dict[tuple[Any, Any], Any]
TABLES = ((mute.TRANSITIONS, MuteState, MuteEvent), (state.TRANSITIONS, ChannelState, ChannelEvent), (tls_state.TRANSITIONS, TlsState, TlsEvent))


@each_of(("table", "states", "events"), TABLES)
def test_every_state_meets_every_event(table: Table, states: type[TableEnum], events: type[TableEnum]) -> None:
    for before in states:
        for event in events:
            if (before, event) in table:
                assert transition(table, before, event) is table[before, event]
                continue
            with pytest.raises(IllegalTransitionError) as caught:
                transition(table, before, event)
            assert (caught.value.state, caught.value.event) == (before, event)


@each_of(("table", "states", "events"), TABLES)
def test_every_state_can_be_reached(table: Table, states: type[enum.Enum], events: type[TableEnum]) -> None:
    assert {next(iter(states)), *table.values()} == set(states)


@each_of(("table", "states", "events"), TABLES[1:])
def test_a_close_is_legal_until_it_has_happened(table: Table, states: Any, events: Any) -> None:
    assert {before for before, event in table if event is events.CLOSE} == set(states) - {states.CLOSED}


def test_both_ends_in_either_order_come_to_the_same() -> None:
    for first, second in ((ChannelEvent.SHUT, ChannelEvent.END_OF_STREAM), (ChannelEvent.END_OF_STREAM, ChannelEvent.SHUT)):
        assert transition(state.TRANSITIONS, transition(state.TRANSITIONS, ChannelState.READY, first), second) is ChannelState.ENDED


@each_of(("after", "before"), [(TlsState.UNPROVEN, TlsState.FINISHING), (TlsState.READY, TlsState.UNPROVEN), (TlsState.FAILED, TlsState.FAILING)])
def test_tls_is_ready_or_failed_only_after_its_last_message_was_sent(before: TlsState, after: TlsState) -> None:
    assert {start for (start, _), end in tls_state.TRANSITIONS.items() if end is after} == {before}
    assert [event for start, event in tls_state.TRANSITIONS if start is TlsState.FAILED] == [TlsEvent.CLOSE]


@each_of("table", [mute.TRANSITIONS, state.TRANSITIONS, pair_state.TRANSITIONS])
def test_tables_are_looked_up_without_a_python_function_for_each_key(table: Table) -> None:
    for key in table:
        assert [type(part).__hash__ for part in key] == [object.__hash__] * 2
