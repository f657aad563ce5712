"""ChannelService, and the channels that closed last, so that an operator can still ask why."""

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from framegate.control.bounds import rows_per_page
from framegate.control.errors import ControlError, NotFoundError
from framegate.control.events import Event, Gap, Row
from framegate.control.service.convert import action_message, channel_message, channel_number, channel_texts, fill_channel, fill_look
from framegate.control.service.interceptor import Context, note
from framegate.control.service.update import fill
from framegate.control.service.validate import Violations, check_required, duration_ms, page, reason, selection
from framegate.control.status import ChannelVerb, Outcome
from framegate.control.steering import channels as steering
from framegate.control.steering.clients import Clients
from framegate.control.steering.filter import CLOSED_FIELDS, ClosedLook, Filter, Order
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceServicer
from framegate.proxy.config.limits import REQUEST_BYTES
from framegate.proxy.server.rows import ClosedRow, OpenRow

R = TypeVar("R")
T = TypeVar("T")
CAPACITY: Final = 1_024  # rows of closed channels that are kept; about 1 KiB each
_SLICE: Final = 100  # rows that are requested, and become messages, at once: about 0.3 ms
_MAX_WINDOW_MS: Final = 5_000
_MAX_AFFECTED: Final = 100_000
_LEAST_TTL_MS: Final = 1_000
_MAX_TTL_MS: Final = 30 * 86_400_000
_MAX_SHOWN: Final = 18
_MAX_SHOWN_IDS: Final = 1_000
_COME_BACK: Final = {
    "mute": "a client that connects again is not muted; with standing, new connections are muted, too",
    "close": "a client can connect again; with standing, new connections are closed, too",
    "throttle": "a client that connects again is not throttled; with standing, new connections are throttled, too",
}
_CLOSED_SLICE: Final = 64  # rows of closed channels that are decoded in one iteration of the event loop


async def _fill(
    response: pb2.ListChannelsResponse | pb2.ListClosedChannelsResponse, rows: Sequence[T], fill: Callable[[pb2.Channel, T], None]
) -> None:
    """Messages of many rows, in slices, so that probes and links are served in between."""
    for start in range(0, len(rows), _SLICE):
        for row in rows[start : start + _SLICE]:
            fill(response.channels.add(), row)
        await asyncio.sleep(0)


class ClosedChannels:
    """The rows of the channels that closed last, by channel id; the oldest is dropped first. Used in the event loop only. Events wait in the
    subscription, and their rows are not decoded, until a request needs them: thousands of channels may close in a second. ``take``: returns the
    events ``closed`` since its last call; its queue has ``capacity``.
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

    async def latest(self, chosen: Filter) -> list[ClosedLook]:
        """Those that match a filter of ``CLOSED_FIELDS``, latest first."""
        self._catch_up()
        found: list[ClosedLook] = []
        now_ns = time.time_ns()
        for count, (channel, event) in enumerate(reversed(tuple(self._events.items())), 1):
            look = ClosedLook(self._row(channel, event), now_ns)
            if chosen.matches(look):
                found.append(look)
            if count % _CLOSED_SLICE == 0:
                await asyncio.sleep(0)
        return found

    def _row(self, channel: int, event: Event) -> ClosedRow:
        """A row that cannot be decoded raises once; it is removed, so that later requests succeed."""
        try:
            return cast(ClosedRow, event.row)
        except Exception:
            self._events.pop(channel, None)
            raise


class Channels(ChannelServiceServicer):
    """Shows, mutes and closes connections."""

    def __init__(self, channels: steering.Channels, closed: ClosedChannels, clients: Clients) -> None:
        self._channels = channels
        self._closed = closed
        self._clients = clients

    async def ListChannels(self, request: pb2.ListChannelsRequest, context: Context) -> pb2.ListChannelsResponse:
        """One page of open channels. While one slice becomes messages, the processors make the rows of the next."""
        size, violations = rows_per_page(request.page_size), Violations()
        window_ms = duration_ms(request.rate_window, "rate_window", _MAX_WINDOW_MS, violations)
        if request.order_by and request.page_token:
            violations.add("page_token", "must be empty: a list with order_by has one page")
        violations.check()
        chosen, response = Filter(request.filter), pb2.ListChannelsResponse()
        if request.order_by:
            looks, response.total_count = await self._channels.top(chosen, Order(request.order_by), size, window_ms)
            await _fill(response, looks, fill_look)
            return response
        if window_ms or chosen.comparisons:
            looks, response.next_page_token = await self._channels.page(chosen, size, request.page_token, window_ms)
            await _fill(response, looks, fill_look)
            return response
        looks, token = await self._channels.page(chosen, min(size, _SLICE), request.page_token)
        while token and (left := size - len(response.channels) - len(looks)):
            (more, token), _ = await asyncio.gather(self._channels.page(chosen, min(left, _SLICE), token), _fill(response, looks, fill_look))
            looks = more
        await _fill(response, looks, fill_look)
        response.next_page_token = token
        return response

    async def ListClosedChannels(self, request: pb2.ListClosedChannelsRequest, context: Context) -> pb2.ListClosedChannelsResponse:
        chosen = Filter(request.filter, fields=CLOSED_FIELDS)
        order = Order(request.order_by, CLOSED_FIELDS) if request.order_by else None
        looks = await self._closed.latest(chosen)
        if order is not None:
            looks = order.first(looks, len(looks))
        shown, token = page([(str(look.row["id"]), look.row) for look in looks], request.page_size, request.page_token)
        response = pb2.ListClosedChannelsResponse(next_page_token=token, total_count=len(looks))
        await _fill(response, shown, fill_channel)
        return response

    async def ListTopClients(self, request: pb2.ListTopClientsRequest, context: Context) -> pb2.ListTopClientsResponse:
        response = pb2.ListTopClientsResponse()
        for measure, ranks in self._clients.rankings.items():
            ranking = response.rankings.add(measure=pb2.ClientMeasure.Value(f"CLIENT_MEASURE_{measure.upper()}"))
            ranking.clients.extend(fill(pb2.TopClient(), rank) for rank in ranks)
        return response

    async def GetChannel(self, request: pb2.GetChannelRequest, context: Context) -> pb2.GetChannelResponse:
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
        return await self._change("mute", request, pb2.MuteChannelsResponse(), reason_needed=True)

    async def UnmuteChannels(self, request: pb2.UnmuteChannelsRequest, context: Context) -> pb2.UnmuteChannelsResponse:
        return await self._change("unmute", request, pb2.UnmuteChannelsResponse())

    async def CloseChannels(self, request: pb2.CloseChannelsRequest, context: Context) -> pb2.CloseChannelsResponse:
        return await self._change("close", request, pb2.CloseChannelsResponse())

    async def ThrottleChannels(self, request: pb2.ThrottleChannelsRequest, context: Context) -> pb2.ThrottleChannelsResponse:
        return await self._change("throttle", request, pb2.ThrottleChannelsResponse())

    async def ListChannelActions(self, request: pb2.ListChannelActionsRequest, context: Context) -> pb2.ListChannelActionsResponse:
        actions = [(str(action.number), action) for action in self._channels.actions]
        chosen, token = page(actions, request.page_size, request.page_token)
        return pb2.ListChannelActionsResponse(actions=map(action_message, chosen), next_page_token=token)

    async def DeleteChannelAction(self, request: pb2.DeleteChannelActionRequest, context: Context) -> pb2.DeleteChannelActionResponse:
        check_required(request.id, "id")
        if not (request.id.isascii() and request.id.isdigit()):
            raise NotFoundError("channel action", request.id[:_MAX_SHOWN])
        action = await self._channels.lift(int(request.id[:_MAX_SHOWN]))
        note(before=dataclasses.asdict(action))
        return pb2.DeleteChannelActionResponse(action=action_message(action))

    async def _change(self, verb: ChannelVerb, request: Any, response: R, *, reason_needed: bool = False) -> R:
        """Change the selected channels, and fill the response; NotFoundError if channels were named and none of them is open."""
        violations = Violations()
        selected = selection(request.selector, violations)
        terms = _terms(verb, request, violations, reason_needed=reason_needed)
        violations.check()
        try:
            outcome = await self._channels.act(verb, selected, terms)
        except ControlError as error:
            if error.changed is not None:
                note(after=_row(error.changed.after))
            raise
        if not isinstance(selected, Filter) and not outcome.affected:
            raise NotFoundError("channel", ", ".join(channel_texts(outcome.missing)))
        affected, missing = channel_texts(outcome.affected[:_MAX_SHOWN_IDS]), channel_texts(outcome.missing)
        filled: Any = response
        filled.affected_channel_ids.extend(affected)
        filled.missing_channel_ids.extend(missing)
        filled.affected_count = len(outcome.affected)
        if outcome.action is not None:
            filled.action.CopyFrom(action_message(outcome.action))
        if verb in _COME_BACK and not terms.standing and outcome.affected:
            filled.hint = _COME_BACK[verb]
        if not terms.validate_only:
            note(after=_row(outcome))
        return response


def _row(outcome: Outcome) -> Row:
    affected, missing = channel_texts(outcome.affected[:_MAX_SHOWN_IDS]), channel_texts(outcome.missing)
    row: Row = {"affected": affected, "affected_count": len(outcome.affected), "missing": missing}
    return row if outcome.action is None else {**row, "action": outcome.action.number}


def _terms(verb: ChannelVerb, request: Any, violations: Violations, *, reason_needed: bool) -> steering.Terms:
    reason(request.reason, violations, needed=reason_needed)
    most = request.max_affected_count
    if not 0 <= most <= _MAX_AFFECTED:
        violations.add("max_affected_count", f"must be 0 to {_MAX_AFFECTED}, not {most}")
    given: dict[str, Any] = {}
    if verb != "unmute":
        ttl_ms = duration_ms(request.ttl, "ttl", _MAX_TTL_MS, violations, least_ms=_LEAST_TTL_MS)
        given.update(ttl_ms=ttl_ms, standing=request.standing)
    if verb == "throttle":
        for name, key in (("request_bytes_per_second", "request_rate"), ("response_bytes_per_second", "response_rate")):
            given[key] = getattr(request, name)
            if not REQUEST_BYTES.takes(given[key]):
                violations.add(name, f"must be {REQUEST_BYTES.least} to {REQUEST_BYTES.most}, not {given[key]}")
    return steering.Terms(reason=request.reason, max_affected=most or steering.TERMS.max_affected, validate_only=request.validate_only, **given)
