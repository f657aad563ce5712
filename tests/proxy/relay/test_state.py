"""The table of a pair's life."""

import pytest

from framegate.proxy.errors import IllegalTransitionError
from framegate.proxy.relay.state import TRANSITIONS, PairEvent, PairState, next_state
from tests.fakes.cases import each_of


@each_of("event", list(PairEvent))
@each_of("state", list(PairState))
def test_every_state_takes_every_event_by_the_table(state, event):
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError):
            next_state(state, event)


def test_every_state_but_the_last_leads_on_to_it_and_any_that_is_not_closing_can_end():
    reached = {PairState.CLOSED}
    for _ in PairState:
        reached |= {before for (before, _), after in TRANSITIONS.items() if after in reached}
    assert reached == set(PairState)
    assert not [before for before, _ in TRANSITIONS if before is PairState.CLOSED]
    assert {before for before, event in TRANSITIONS if event is PairEvent.END} == set(PairState) - {PairState.CLOSING, PairState.CLOSED}
