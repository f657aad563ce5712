"""Connection ids: unique across processors and restarts, one i64 each, with a text form.

slot (6 bits) << 57 | generation (28 bits) << 29 | counter (29 bits); the text form is ``slot-generation-counter`` in decimal.
"""

from typing import Final

from mypy_extensions import i64

SLOT_BITS: Final = 6
GENERATION_BITS: Final = 28
COUNTER_BITS: Final = 29


def make_connection_id(slot: int, generation: int, counter: int) -> int:
    """Pack the three parts. Raises ValueError: a part is out of its range."""
    for value, bits, name in ((slot, SLOT_BITS, "slot"), (generation, GENERATION_BITS, "generation"), (counter, COUNTER_BITS, "counter")):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} {value} does not fit {bits} bits")
    return slot << (GENERATION_BITS + COUNTER_BITS) | generation << COUNTER_BITS | counter


def format_connection_id(connection_id: int) -> str:
    """Return ``slot-generation-counter``, as logs and the API show it."""
    counter = connection_id & ((1 << COUNTER_BITS) - 1)
    generation = (connection_id >> COUNTER_BITS) & ((1 << GENERATION_BITS) - 1)
    return f"{slot_of(connection_id)}-{generation}-{counter}"


def slot_of(connection_id: int) -> int:
    """Return the slot of the processor that has, or had, the connection."""
    return connection_id >> (GENERATION_BITS + COUNTER_BITS)


def parse_connection_id(text: str) -> int:
    """Parse the text form. Raises ValueError: the text is not three decimal numbers in range."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"not a connection id: {text!r}")
    return make_connection_id(int(parts[0]), int(parts[1]), int(parts[2]))


class ConnectionIds:
    """The ids of one run of a processor. The counter wraps after 2**29 connections. The n-th connection that is passed to the processor has the
    counter n, so the control process knows the ids of a processor that died.
    """

    def __init__(self, slot: int, generation: int) -> None:
        self._base: i64 = make_connection_id(slot, generation & ((1 << GENERATION_BITS) - 1), 0)
        self._counter: i64 = 0

    def next(self) -> i64:
        mask: i64 = (1 << COUNTER_BITS) - 1
        self._counter = (self._counter + 1) & mask
        return self._base | self._counter

    def give_back(self) -> None:
        """Return the last id: ``next`` gives it again, for the row of the connection that is refused."""
        mask: i64 = (1 << COUNTER_BITS) - 1
        self._counter = (self._counter - 1) & mask
