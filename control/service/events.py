"""EventService: the rows of the log, as a stream.

The rows that wait for a watcher are bounded (``control.events.Subscription``). Between two responses to a watcher there is a pause for each watcher
that there is, so that the time that all of them take of the event loop is bounded, too.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from framegate.control.errors import InvalidArgumentError, Violation
from framegate.control.events import Bus, Event, Gap
from framegate.control.logs.catalog import EVENTS
from framegate.control.logs.forms import as_json
from framegate.control.service.convert import timestamp
from framegate.control.service.interceptor import Context
from framegate.control.steering.filter import Field, Filter
from framegate.control.v1 import event_service_pb2 as pb2
from framegate.control.v1.event_service_pb2_grpc import EventServiceServicer
from framegate.control.v1.log_service_pb2 import Log

_BATCH: Final = 128  # rows in one response
_PAUSE_S: Final = 0.005  # between two responses, for each watcher
_BOOKMARK: Final = 512  # after so many rows that the filter leaves out, the watcher gets a new resume token
_CACHED: Final = 1_024  # Messages that are kept for other watchers


def _text(name: str) -> Field:
    return Field("text", lambda event: str(event.row.get(name) or ""))


def _processor(event: Event) -> str:
    """The slot of a row: its own, or that of its connection."""
    row = event.row
    return str(row["slot"]) if "slot" in row else str(row.get("id", "")).partition("-")[0]


FIELDS: Final[Mapping[str, Field]] = {
    "event": Field("text", lambda event: event.name),
    "level": Field("text", lambda event: event.level),
    "address": Field("address", lambda event: str(event.row.get("peer") or "")),
    "processor": Field("text", _processor),
    **{name: _text(name) for name in ("listener", "principal", "client_id", "upstream", "endpoint", "cause", "side", "who", "method", "result")},
}  # the fields of filters


class Events(EventServiceServicer):
    """Sends the rows of the log."""

    def __init__(self, rows: Bus) -> None:
        self._rows = rows
        self._process = secrets.token_hex(4)
        self._messages: dict[int, pb2.Event] = {}

    async def WatchEvents(self, request: pb2.WatchEventsRequest, context: Context) -> AsyncGenerator[pb2.WatchEventsResponse]:
        """Rows until the watcher cancels, or the proxy ends."""
        chosen = Filter(request.filter, fields=FIELDS)
        after, restarted = self._begin(request)
        subscription = self._rows.subscribe(_names(chosen), after, only_kept=request.once)
        try:
            told = subscription.after
            yield pb2.WatchEventsResponse(resume_token=self._token(told), restarted=restarted)
            async for first in subscription:
                items = [first, *subscription.take(_BATCH - 1)]
                response = self._response(items, chosen)
                number = items[-1].sequence if isinstance(items[-1], Event) else items[-1].last
                if response.events or response.lost_count or number - told >= _BOOKMARK:
                    told = number
                    response.resume_token = self._token(number)
                    yield response
                await asyncio.sleep(_PAUSE_S * len(self._rows.subscriptions))
        finally:
            subscription.close()

    def _begin(self, request: pb2.WatchEventsRequest) -> tuple[int | None, bool]:
        """The number after which the rows begin; None: the newest. Whether the token is of another process."""
        if not request.resume_token:
            return (self._rows.oldest - 1 if request.replay or request.once else None), False
        process, _, number = request.resume_token.partition("-")
        if len(process) != len(self._process) or not (number.isascii() and number.isdigit()) or len(number) > 18:
            raise InvalidArgumentError([Violation("resume_token", "is not one that a response gave")])
        if process != self._process:
            return 0, True
        if int(number) > self._rows.newest:
            raise InvalidArgumentError([Violation("resume_token", "is not one that a response gave")])
        return int(number), False

    def _token(self, number: int) -> str:
        return f"{self._process}-{number}"

    def _response(self, items: Sequence[Event | Gap], chosen: Filter) -> pb2.WatchEventsResponse:
        events = [self._message(item) for item in items if isinstance(item, Event) and chosen.matches(item)]
        return pb2.WatchEventsResponse(events=events, lost_count=sum(item.dropped for item in items if isinstance(item, Gap)))

    def _message(self, event: Event) -> pb2.Event:
        message = self._messages.get(event.sequence)
        if message is None:
            fields: dict[str, Any] = {name: value for name, value in event.row.items() if name != "event"}
            message = self._messages[event.sequence] = pb2.Event(
                sequence=event.sequence,
                time=timestamp(event.time_ns),
                level=Log.Level.Value(f"LEVEL_{event.level.upper()}"),
                name=event.name,
                fields_json=as_json(fields),
            )
            if len(self._messages) > _CACHED:
                del self._messages[next(iter(self._messages))]
        return message


def _names(chosen: Filter) -> list[str]:
    """The only events that can match, so that the others need not be looked at; empty: any."""
    named = [item.value for item in chosen.comparisons if (item.name, item.operator) == ("event", "=") and not set(item.value) & set("*?[")]
    for name in named:
        if name not in EVENTS:
            raise InvalidArgumentError([Violation("filter", f"there is no event {name[:64]!r}; deploy/log.md lists them")])
    return named[:1]
