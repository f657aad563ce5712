"""EventService over a real socket."""

import asyncio
import json
from typing import Any

import grpc

from framegate.control.events.subscription import MAX_EVENTS
from framegate.control.service.interceptor import MAX_WATCHERS
from framegate.control.v1 import event_service_pb2 as pb2
from framegate.control.v1.event_service_pb2_grpc import EventServiceStub
from framegate.control.v1.log_service_pb2 import Log
from tests.control.service.served import refused, served
from tests.fakes.serving import Serving


async def watch(at: Serving, **fields: Any) -> tuple[Any, pb2.WatchEventsResponse]:
    """A call, and its first response."""
    call = EventServiceStub(at.channel).WatchEvents(pb2.WatchEventsRequest(**fields))
    return call, await call.read()


async def kept(at: Serving, **fields: Any) -> list[int]:
    """The numbers of the rows that are kept and match; a negative number: that many are lost."""
    found: list[int] = []
    async for response in EventServiceStub(at.channel).WatchEvents(pb2.WatchEventsRequest(once=True, **fields)):
        found += [-response.lost_count] * (response.lost_count > 0) + [event.sequence for event in response.events]
    return found


def write(at: Serving, count: int = 1, name: str = "closed", **fields: Any) -> None:
    for _ in range(count):
        at.plane.written.publish({"event": name, **fields}, level=fields.get("level", "info"))


async def gone(at: Serving) -> None:
    """When no watcher is left."""
    while at.plane.written.subscriptions:
        await asyncio.sleep(0.001)


@served()
async def test_rows_come_as_they_are_written_and_a_watcher_continues_where_it_was(at: Serving) -> None:
    write(at, 2)
    call, first = await watch(at)
    assert (list(first.events), first.lost_count, first.restarted) == ([], 0, False)
    write(at, id="0-1-7", opened_ns=1_700_000_000_123_456_789)
    response = await call.read()
    (event,) = response.events
    assert (event.sequence, event.name, event.level) == (3, "closed", Log.LEVEL_INFO)
    assert json.loads(event.fields_json) == {"id": "0-1-7", "opened_ns": 1_700_000_000_123_456_789}
    call.cancel()
    await gone(at)
    write(at, 2)
    call, again = await watch(at, resume_token=response.resume_token)
    assert again.resume_token == response.resume_token
    assert [item.sequence for item in (await call.read()).events] == [4, 5]
    assert await kept(at, resume_token=first.resume_token) == [3, 4, 5]
    call.cancel()
    await gone(at)


@served()
async def test_a_token_that_is_too_old_says_how_many_rows_are_lost_and_one_of_another_process_that_it_was_restarted(at: Serving) -> None:
    _, first = await watch(at, once=True)
    for more in (MAX_EVENTS - 1, 1, 1):
        write(at, more)
        newest = at.plane.written.newest
        lost = max(newest - MAX_EVENTS, 0)
        assert await kept(at, resume_token=first.resume_token) == [-lost] * (lost > 0) + list(range(lost + 1, newest + 1))
    assert await kept(at) == list(range(2, MAX_EVENTS + 2)), "without a token the oldest that is kept is the first"
    call, other = await watch(at, resume_token="00000000-7")
    assert other.restarted
    assert (await call.read()).lost_count == 1
    call.cancel()
    await gone(at)


@served()
async def test_a_slow_watcher_is_told_what_it_lost_and_nobody_waits_for_it(at: Serving) -> None:
    call, _ = await watch(at)
    write(at, 3 * MAX_EVENTS, detail="x" * 4_000)
    count = lost = 0
    while count + lost < 3 * MAX_EVENTS:
        response = await call.read()
        count, lost = count + len(response.events), lost + response.lost_count
    assert lost >= 2 * MAX_EVENTS
    assert response.events[-1].sequence == 3 * MAX_EVENTS
    call.cancel()
    await gone(at)


@served()
async def test_filters_choose_rows_by_their_fields_and_bad_requests_are_refused(at: Serving) -> None:
    write(at, name="processor_died", slot=1, level="error")
    write(at, id="1-1-7", peer="10.1.2.3:40", cause="frame_too_large", listener="kafka", principal=None)
    write(at, id="0-1-8", peer="[fd00::1]:40", cause="peer_closed", listener="plain")
    for text, numbers in (
        ("event=closed", [2, 3]),
        ("event=clo*", [2, 3]),
        ("level!=info", [1]),
        ("address=10.0.0.0/8", [2]),
        ("processor=1", [1, 2]),
        ("event=closed cause=frame_too_large listener=kafka", [2]),
        ("cause!=peer_closed event!=processor_died", [2]),
        ('principal=""', [1, 2, 3]),
        ("event=closed event=opened", []),
    ):
        assert (text, await kept(at, filter=text)) == (text, numbers)
    for request, field in (
        ({"filter": "cause>1"}, "filter"),
        ({"filter": "colour=red"}, "filter"),
        ({"filter": "event=clsoed"}, "filter"),
        ({"resume_token": "7"}, "resume_token"),
        ({"resume_token": "00000000-x"}, "resume_token"),
        ({"resume_token": (await watch(at, once=True))[1].resume_token[:9] + "4"}, "resume_token"),
    ):
        call = EventServiceStub(at.channel).WatchEvents(pb2.WatchEventsRequest(**request))  # type: ignore[arg-type]
        assert await refused(call.read()) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", [field]), request
    await gone(at)


@served()
async def test_a_filter_that_leaves_rows_out_still_moves_the_token(at: Serving) -> None:
    call, first = await watch(at, filter="level=error")
    write(at, 600)
    response = await call.read()
    assert (list(response.events), response.lost_count) == ([], 0)
    assert first.resume_token != response.resume_token
    call.cancel()
    await gone(at)


@served()
async def test_as_many_watchers_as_may_be_get_every_row_one_more_is_refused_and_the_end_ends_them_in_order(at: Serving) -> None:
    calls = [(await watch(at))[0] for _ in range(MAX_WATCHERS)]
    more = EventServiceStub(at.channel).WatchEvents(pb2.WatchEventsRequest())
    assert (await refused(more.read()))[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WATCHERS")
    write(at)
    for call in calls:
        assert [event.sequence for event in (await call.read()).events] == [1]
    calls.pop().cancel()
    while len(at.plane.written.subscriptions) == MAX_WATCHERS:
        await asyncio.sleep(0.001)
    write(at)
    at.plane.written.close()
    for call in calls:
        assert [event.sequence for event in (await call.read()).events] == [2]
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    await gone(at)
