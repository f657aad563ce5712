"""State machines as tables: from (state, event) to the next state. What every table shares; the tables stand with what they are of."""

import enum
from typing import TypeVar

from framegate.proxy.errors import IllegalTransitionError

__all__ = ["TableEnum", "transition"]


class TableEnum(enum.Enum):
    """Base of the states and the events of a table."""

    __hash__ = object.__hash__  # an Enum's own is a Python function, called twice for each look-up in a table


State = TypeVar("State", bound=TableEnum)
Event = TypeVar("Event", bound=TableEnum)


def transition(table: dict[tuple[State, Event], State], state: State, event: Event) -> State:
    """The state after ``event``.

    Raises:
        IllegalTransitionError: the table has no such row: a bug of ours.
    """
    found = table.get((state, event))
    if found is None:
        raise IllegalTransitionError(state, event)
    return found
