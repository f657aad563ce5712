"""Which processor has which connection: connections passed by the acceptor, reported closed, or lost with their processor.

The acceptor's thread hands a connection over first and says so afterwards, so all else may overtake it: the row of a connection that is closed
already, and the end of the processor that got it. Whoever takes something off the books therefore books first what was handed over
(``count_handed``), and a processor that ended stays known by its token until the next one ends in its slot.
"""

import functools
import itertools
from collections.abc import Callable, Sequence

from framegate.control.accept.acceptor import Acceptor
from framegate.control.events import Bus, Line, Row
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.lost_connections import lost_connection_row
from framegate.control.fleet.processor import AssignedConnection, Processor
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.server.link import decode_row, split_line

__all__ = ["Connections"]


def _read(event: str, number: int, text: str) -> Row:
    return {"event": event, **decode_row(event, number, text)}


class Connections:
    """Books and unbooks connections, and publishes each one's closed row. Event loop only.

    Args:
        acceptor: reports passed connections, and counts open ones by listener.
        desired: says which upstream a listener has.
        events: gets every closed row.
    """

    def __init__(self, acceptor: Acceptor, desired: DesiredState, events: Bus) -> None:
        self._acceptor = acceptor
        self._desired = desired
        self._events = events
        self._last_token = itertools.count(1)
        self._processors: dict[int, Processor] = {}  # by token, with the last that ended in each slot
        self._tokens: dict[Processor, int] = {}
        self._last_ended: dict[int, int] = {}  # the token, by slot

    def enter(self, processor: Processor) -> None:
        """One more may get connections."""
        token = next(self._last_token)
        self._processors[token] = processor
        self._tokens[processor] = token

    def token(self, processor: Processor) -> int:
        """What the acceptor calls a processor that may get connections."""
        return self._tokens[processor]

    def forget(self, processor: Processor) -> int:
        """One has ended: write the rows of the connections that went with it, and give how many those are."""
        self.count_handed()
        self._processors.pop(self._last_ended.get(processor.slot, 0), None)
        self._last_ended[processor.slot] = self._tokens.pop(processor)
        casualties = [given for given in processor.open.values() if given is not None]
        processor.open.clear()
        for given in casualties:
            self._lost(processor, given)
        return len(casualties)

    def count_handed(self) -> None:
        """Add the connections that the acceptor passed since the last call; called before any is removed."""
        handed = self._acceptor.handed
        while handed:
            token, handover = handed.popleft()
            processor = self._processors[token]
            given = processor.book(handover)
            if processor not in self._tokens:
                self._lost(processor, given)

    def closed(self, processor: Processor, lines: Sequence[str], failed: Callable[[Exception], None]) -> None:
        """A processor reports some closed, with their rows. ``failed`` gets those that cannot be read."""
        self.count_handed()
        told: list[Line] = []
        for line in lines:
            try:
                accepted_ns, number, text = split_line("closed", line)
                read = functools.partial(_read, "closed", number, text)
                self._unbook(processor, accepted_ns, read)
                told.append((number, text, read))
            except Exception as error:
                failed(error)
        self._events.publish_lines("closed", told)

    def reported(self, event: str, lines: Sequence[str], failed: Callable[[Exception], None], *, level: str = "info") -> None:
        """A processor tells of some that have opened, or are still open; ``event`` is the notice's. ``failed`` is told of what cannot be read."""
        told: list[Line] = []
        for line in lines:
            try:
                _, number, text = split_line(event, line)
                told.append((number, text, functools.partial(_read, event, number, text)))
            except Exception as error:
                failed(error)
        self._events.publish_lines(event, told, level=level)

    def _unbook(self, processor: Processor, accepted_ns: int, read: Callable[[], Row]) -> None:
        given = processor.open.get(accepted_ns)
        if given is None:  # the acceptor's thread has handed it over, and has not come to saying so
            row = read()
            self._acceptor.gave_back(row["listener"], row["peer"])
        else:
            self._acceptor.gave_back(given.handover.listener, given.handover.peer)
        processor.unbook(accepted_ns)

    def _lost(self, processor: Processor, given: AssignedConnection) -> None:
        name = given.handover.listener
        self._acceptor.gave_back(name, given.handover.peer)
        upstream = next(item.upstream for item in self._desired.config.listeners if item.name == name)
        row = lost_connection_row(processor, given, upstream or "")
        printed: Row = {**row, "id": format_connection_id(row["id"])}
        self._events.publish({"event": "closed", **row}, line=printed)
