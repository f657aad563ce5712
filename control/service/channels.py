"""ChannelService."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from framegate.control.bounds import rows_per_page
from framegate.control.errors import InvalidArgumentError, NotFoundError, Violation
from framegate.control.service import paging
from framegate.control.service.closed import ClosedChannels
from framegate.control.service.convert import cause_name, channel_message, channel_number, channel_texts, fill_channel
from framegate.control.service.interceptor import note
from framegate.control.service.validate import Violations, reason, selection
from framegate.control.status import Outcome
from framegate.control.steering import channels as steering
from framegate.control.steering.state import State
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceServicer
from framegate.proxy.server.rows import ClosedRow, OpenRow

__all__ = ["Channels"]

Context = grpc.aio.ServicerContext[Any, Any]
_SLICE: Final = 100
"""Rows that are asked for, and become messages, in one go: about 0.3 ms."""


async def _fill(response: pb2.ListChannelsResponse | pb2.ListClosedChannelsResponse, rows: Sequence[OpenRow | ClosedRow]) -> None:
    """Messages of many rows, in slices, so that probes and links are not kept waiting."""
    for start in range(0, len(rows), _SLICE):
        for row in rows[start : start + _SLICE]:
            fill_channel(response.channels.add(), row)
        await asyncio.sleep(0)


class Channels(ChannelServiceServicer):
    """Shows connections and lays a hand on them."""

    def __init__(self, channels: steering.Channels, closed: ClosedChannels, state: State) -> None:
        self._channels = channels
        self._state = state
        self._closed = closed

    async def ListChannels(self, request: pb2.ListChannelsRequest, context: Context) -> pb2.ListChannelsResponse:
        """One page of open channels. While one slice of it becomes messages, the processors make the rows of the next."""
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
        """One page of channels that closed a short time ago."""
        if request.cause not in pb2.Cause.values():
            raise InvalidArgumentError([Violation("cause", f"{request.cause} is no Cause")])
        if request.listener and all(item.name != request.listener for item in self._state.config.listeners):
            raise NotFoundError("listener", request.listener)
        rows = await self._closed.latest(request.listener or None, cause_name(request.cause))
        chosen, token = paging.page([(str(row["id"]), row) for row in rows], request.page_size, request.page_token)
        response = pb2.ListClosedChannelsResponse(next_page_token=token)
        await _fill(response, chosen)
        return response

    async def GetChannel(self, request: pb2.GetChannelRequest, context: Context) -> pb2.GetChannelResponse:
        """One channel, open or closed a short time ago."""
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
        """Take an operator's mute back."""
        outcome = await self._change("unmute", request.selector, request.reason)
        return pb2.UnmuteChannelsResponse(affected_channel_ids=channel_texts(outcome.affected), missing_channel_ids=channel_texts(outcome.missing))

    async def CloseChannels(self, request: pb2.CloseChannelsRequest, context: Context) -> pb2.CloseChannelsResponse:
        """Close with the cause ``admin``."""
        outcome = await self._change("close", request.selector, request.reason)
        return pb2.CloseChannelsResponse(affected_channel_ids=channel_texts(outcome.affected), missing_channel_ids=channel_texts(outcome.missing))

    async def _change(self, verb: steering.Verb, selector: pb2.ChannelSelector, why: str, *, reason_needed: bool = False) -> Outcome:
        """Do it to the selected channels; NotFoundError when channels were named and none of them is open."""
        violations = Violations()
        numbers, listener, principal = selection(selector, violations)
        reason(why, violations, needed=reason_needed)
        violations.check()
        outcome = await self._channels.act(verb, numbers, listener, why, principal)
        if numbers and not outcome.affected:
            raise NotFoundError("channel", ", ".join(channel_texts(outcome.missing)))
        note(after={"affected": channel_texts(outcome.affected), "missing": channel_texts(outcome.missing)})
        return outcome
