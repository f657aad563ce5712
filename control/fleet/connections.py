"""Which processor has which connection: connections passed by the acceptor, reported closed, or lost with their processor.

The acceptor's thread passes a connection first and reports it afterwards. The connection may be closed, or its processor may end, before that report.
So connections that were passed are added (``count_handed``) before any is removed, and a processor that ended stays known by its token until the next
one ends in its slot.
"""

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.events import Bus, Row
from framegate.control.fleet.child import FORCED
from framegate.control.fleet.processor import AssignedConnection, Processor
from framegate.proxy.cause import LEVELS
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.server.link import decode_row, split_line
from framegate.proxy.server.rows import RESTORED, ClosedRow, LostRow, TrafficRow

_CAUSE: Final = '"cause":"'
"""Comes before the cause in the text of a ``closed`` row. No string value can contain this text, because its quotes are escaped."""


def _level(text: str) -> str:
    _, found, rest = text.partition(_CAUSE)
    return LEVELS.get(rest[: rest.find('"')], "warning") if found else "info"


def _read(event: str, number: int, text: str) -> Row:
    return {"event": event, **decode_row(event, number, text)}


class Connections:
    """Adds and removes connections, and publishes their rows. Event loop only. ``acceptor``: reports passed connections, and counts open ones by
    listener.
    """

    def __init__(self, acceptor: Acceptor, events: Bus) -> None:
        self._acceptor = acceptor
        self._events = events
        self._last_token = itertools.count(1)
        self._processors: dict[int, Processor] = {}  # by token, with the last that ended in each slot
        self._tokens: dict[Processor, int] = {}
        self._last_ended: dict[int, int] = {}  # the token, by slot

    def enter(self, processor: Processor) -> None:
        token = next(self._last_token)
        self._processors[token] = processor
        self._tokens[processor] = token

    def token(self, processor: Processor) -> int:
        return self._tokens[processor]

    def forget(self, processor: Processor) -> int:
        """Remove a processor that ended, and publish the rows of its connections. Returns their number."""
        self.count_handed()
        self._processors.pop(self._last_ended.get(processor.slot, 0), None)
        self._last_ended[processor.slot] = self._tokens.pop(processor)
        lost = [given for given in processor.open.values() if given is not None]
        processor.open.clear()
        for given in lost:
            self._lost(processor, given)
        return len(lost)

    def count_handed(self) -> None:
        """Add the connections that the acceptor passed since the last call; called before any is removed."""
        handed = self._acceptor.handed
        while handed:
            token, handover = handed.popleft()
            processor = self._processors[token]
            given = processor.book(handover)
            if processor not in self._tokens:
                self._lost(processor, given)

    def reported(self, processor: Processor, event: str, lines: Sequence[str], failed: Callable[[Exception], None], *, level: str = "info") -> None:
        """Publish the rows of connections that a processor reports as opened, still open, or closed, and remove the closed ones.

        Args:
            event: ``opened``, ``access`` or ``closed``.
            level: of the rows; those of closed connections have the level of their cause.
            failed: gets the error of each row that cannot be read.
        """
        closed = event == "closed"
        if closed:
            self.count_handed()
        told: dict[str, tuple[list[int], list[str]]] = {}
        for line in lines:
            try:
                accepted_ns, number, text = split_line(event, line)
                if closed:
                    self._unbook(processor, accepted_ns, number, text)
                    level = _level(text)
                numbers, texts = told.get(level) or told.setdefault(level, ([], []))
                numbers.append(number)
                texts.append(text)
            except Exception as error:
                failed(error)
        for level, (numbers, texts) in told.items():
            self._events.publish_lines(event, texts, functools.partial(_read, event), subjects=numbers, level=level)

    def _unbook(self, processor: Processor, accepted_ns: int, number: int, text: str) -> None:
        given = processor.open.get(accepted_ns)
        if given is None:  # the acceptor's thread has passed it, and not reported it yet
            row = _read("closed", number, text)
            self._acceptor.gave_back(row["listener"], row["peer"], row.get("broker", -1))
        else:
            self._gave_back(given)
        processor.unbook(accepted_ns)

    def _gave_back(self, given: AssignedConnection) -> None:
        self._acceptor.gave_back(given.handover.listener, given.handover.peer, given.handover.broker)

    def _lost(self, processor: Processor, given: AssignedConnection) -> None:
        name = given.handover.listener
        self._gave_back(given)
        row = lost_connection_row(processor, given, self._acceptor.of(name).config.upstream or "")
        printed: Row = {name: value for name, value in row.items() if name not in RESTORED} | {"id": format_connection_id(row["id"])}
        self._events.publish({"event": "closed", **row}, level=LEVELS[row["cause"]], line=printed)


def end_cause(processor: Processor) -> str:
    """The cause with which the connections of a processor that ended were closed, one of ``framegate.proxy.cells.CAUSES``."""
    return "drain_timeout" if processor.kill_reason == FORCED else "processor_died"


def lost_connection_row(processor: Processor, given: AssignedConnection, upstream: str) -> ClosedRow:
    """The closed row of a connection that ended with its processor, which could not write it. Values that only the processor knew are None."""
    what = "was stopped by force" if processor.kill_reason == FORCED else "died"
    now_ns = time.time_ns()
    lasted_ns = time.monotonic_ns() - given.handover.accepted_ns
    row = ClosedRow(
        id=given.number,
        listener=given.handover.listener,
        peer=given.handover.peer,
        upstream=upstream,
        endpoint=None,
        principal=None,
        mechanism=None,
        tls=None,
        frames=TrafficRow(request=None, response=None),
        bytes=TrafficRow(request=None, response=None),
        opened_ns=now_ns - lasted_ns,
        handshake_ns=None,
        connect_ns=None,
        connect_started_ns=None,
        attempts=None,
        attempt_started_ns=None,
        tcp_ns=None,
        tls_ns=None,
        login_ns=None,
        cause=end_cause(processor),
        detail=f"the processor {what}, exit code {processor.ended.result()}; what had passed is not known",
        side="internal",
        state="",
        closed_ns=now_ns,
        duration_ms=lasted_ns / 1e6,
        lost=LostRow(bytes=None, request=None, response=None),
        mutes={},
    )
    if given.handover.broker >= 0:
        row["broker"] = given.handover.broker
    return row
