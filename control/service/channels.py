"""ChannelService, and the channels that closed last, so that an operator can still ask why."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, cast

from framegate.control.bounds import rows_per_page
from framegate.control.errors import InvalidArgumentError, NotFoundError, Violation
from framegate.control.events import Event, Gap
from framegate.control.service.convert import cause_name, channel_message, channel_number, channel_texts, fill_channel
from framegate.control.service.interceptor import Context, note
from framegate.control.service.validate import Violations, page, reason, selection
from framegate.control.status import Outcome
from framegate.control.steering import channels as steering
from framegate.control.steering.state import State
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceServicer
from framegate.proxy.server.rows import ClosedRow, OpenRow

__all__ = ["CAPACITY", "Channels", "ClosedChannels"]

CAPACITY: Final = 1_024
"""Rows of closed channels that are kept; about 1 KiB each."""
_SLICE: Final = 100
"""Rows that are requested, and become messages, at once: about 0.3 ms."""
_CLOSED_SLICE: Final = 64
"""Rows of closed channels that are decoded in one iteration of the event loop."""


async def _fill(response: pb2.ListChannelsResponse | pb2.ListClosedChannelsResponse, rows: Sequence[OpenRow | ClosedRow]) -> None:
    """Messages of many rows, in slices, so that probes and links are served in between."""
    for start in range(0, len(rows), _SLICE):
        for row in rows[start : start + _SLICE]:
            fill_channel(response.channels.add(), row)
        await asyncio.sleep(0)


class ClosedChannels:
    """The rows of the channels that closed last, by channel id; the oldest is dropped first. Used in the event loop only.

    Events wait in the subscription, and their rows are not decoded, until a request needs them: thousands of channels may close in a second.

    Args:
        take: returns the events ``closed`` since its last call; its queue has ``capacity``.
        capacity: rows that are kept.
    """

    def __init__(self, take: Callable[[], list[Event | Gap]], capacity: int = CAPACITY) -> None:
        self._take = take
        self._capacity = capacity
        self._events: OrderedDict[int, Event] = OrderedDict()

    def _catch_up(self) -> None:
        for item in self._take():
            if isinstance(item, Event):
                number = item.subject or item.row["id"]
                self._events[number] = item
                self._events.move_to_end(number)
                while len(self._events) > self._capacity:
                    self._events.popitem(last=False)

    def get(self, channel: int) -> ClosedRow | None:
        """The row of one channel; None if it is not known, or not any more."""
        self._catch_up()
        event = self._events.get(channel)
        return None if event is None else self._row(channel, event)

    async def latest(self, listener: str | None = None, cause: str | None = None) -> list[ClosedRow]:
        """The rows, latest first; only those of a listener and with a cause, if these are given."""
        self._catch_up()
        chosen: list[ClosedRow] = []
        for count, (channel, event) in enumerate(reversed(tuple(self._events.items())), 1):
            row = self._row(channel, event)
            if (listener is None or row["listener"] == listener) and (cause is None or row["cause"] == cause):
                chosen.append(row)
            if count % _CLOSED_SLICE == 0:
                await asyncio.sleep(0)
        return chosen

    def _row(self, channel: int, event: Event) -> ClosedRow:
        """A row that cannot be decoded raises once; it is removed, so that later requests succeed."""
        try:
            return cast(ClosedRow, event.row)
        except Exception:
            self._events.pop(channel, None)
            raise


class Channels(ChannelServiceServicer):
    """Shows, mutes and closes connections."""

    def __init__(self, channels: steering.Channels, closed: ClosedChannels, state: State) -> None:
        self._channels = channels
        self._state = state
        self._closed = closed

    async def ListChannels(self, request: pb2.ListChannelsRequest, context: Context) -> pb2.ListChannelsResponse:
        """One page of open channels. While one slice becomes messages, the processors make the rows of the next."""
        size = rows_per_page(request.page_size)
        listener = request.listener or None
        response = pb2.ListChannelsResponse()
        rows, token = await self._channels.page(listener, min(size, _SLICE), request.page_token)
        while token and (left := size - len(response.channels) - len(rows)):
            (more, token), _ = await asyncio.gather(self._channels.page(listener, min(left, _SLICE), token), _fill(response, rows))
            rows = more
        await _fill(response, rows)
        response.next_page_token = token
        return response

    async def ListClosedChannels(self, request: pb2.ListClosedChannelsRequest, context: Context) -> pb2.ListClosedChannelsResponse:
        """One page of the channels that closed last."""
        if request.cause not in pb2.Cause.values():
            raise InvalidArgumentError([Violation("cause", f"{request.cause} is no Cause")])
        if request.listener and all(item.name != request.listener for item in self._state.config.listeners):
            raise NotFoundError("listener", request.listener)
        rows = await self._closed.latest(request.listener or None, cause_name(request.cause))
        chosen, token = page([(str(row["id"]), row) for row in rows], request.page_size, request.page_token)
        response = pb2.ListClosedChannelsResponse(next_page_token=token)
        await _fill(response, chosen)
        return response

    async def GetChannel(self, request: pb2.GetChannelRequest, context: Context) -> pb2.GetChannelResponse:
        """One channel, open or among those that closed last."""
        violations = Violations()
        number = channel_number(request.id, "id", violations.add)
        violations.check()
        assert number is not None, "a bad id is a violation"
        row: OpenRow | ClosedRow
        try:
            row = await self._channels.describe(number)
        except NotFoundError:
            closed = self._closed.get(number)
            if closed is None:
                raise
            row = closed
        return pb2.GetChannelResponse(channel=channel_message(row))

    async def MuteChannels(self, request: pb2.MuteChannelsRequest, context: Context) -> pb2.MuteChannelsResponse:
        """Read no further frame from clients."""
        outcome = await self._change("mute", request.selector, request.reason, reason_needed=True)
        return pb2.MuteChannelsResponse(affected_channel_ids=channel_texts(outcome.affected), missing_channel_ids=channel_texts(outcome.missing))

    async def UnmuteChannels(self, request: pb2.UnmuteChannelsRequest, context: Context) -> pb2.UnmuteChannelsResponse:
        """End an operator's mute."""
        outcome = await self._change("unmute", request.selector, request.reason)
        return pb2.UnmuteChannelsResponse(affected_channel_ids=channel_texts(outcome.affected), missing_channel_ids=channel_texts(outcome.missing))

    async def CloseChannels(self, request: pb2.CloseChannelsRequest, context: Context) -> pb2.CloseChannelsResponse:
        """Close with the cause ``admin``."""
        outcome = await self._change("close", request.selector, request.reason)
        return pb2.CloseChannelsResponse(affected_channel_ids=channel_texts(outcome.affected), missing_channel_ids=channel_texts(outcome.missing))

    async def _change(self, verb: steering.Verb, selector: pb2.ChannelSelector, text: str, *, reason_needed: bool = False) -> Outcome:
        """Change the selected channels; NotFoundError if channels were named and none of them is open."""
        violations = Violations()
        numbers, listener, principal = selection(selector, violations)
        reason(text, violations, needed=reason_needed)
        violations.check()
        outcome = await self._channels.act(verb, numbers, listener, text, principal)
        if numbers and not outcome.affected:
            raise NotFoundError("channel", ", ".join(channel_texts(outcome.missing)))
        note(after={"affected": channel_texts(outcome.affected), "missing": channel_texts(outcome.missing)})
        return outcome
