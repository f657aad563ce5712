"""framegate.proxy.network.state_table: what every table of states shares."""

import pytest

from framegate.proxy.errors import IllegalTransitionError
from framegate.proxy.network import mute, state
from framegate.proxy.network.state_table import TableEnum, transition
from framegate.proxy.relay import state as pair_state
from tests.fakes.cases import each_of


class Light(TableEnum):
    RED = "red"
    GREEN = "green"


class Press(TableEnum):
    BUTTON = "button"


def test_a_row_is_followed_and_a_missing_one_is_a_bug() -> None:
    table = {(Light.RED, Press.BUTTON): Light.GREEN}
    assert transition(table, Light.RED, Press.BUTTON) is Light.GREEN
    with pytest.raises(IllegalTransitionError) as caught:
        transition(table, Light.GREEN, Press.BUTTON)
    assert (caught.value.state, caught.value.event) == (Light.GREEN, Press.BUTTON)


@each_of("table", [mute.TRANSITIONS, state.TRANSITIONS, pair_state.TRANSITIONS])
def test_tables_are_looked_up_without_a_python_function_for_each_key(table) -> None:
    for key in table:
        assert [type(part).__hash__ for part in key] == [object.__hash__] * 2
