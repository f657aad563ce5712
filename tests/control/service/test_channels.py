"""ChannelService over a real socket; the channels that closed last are bounded and in order."""

import asyncio
from collections.abc import Callable

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from framegate.control.errors import UnavailableError
from framegate.control.events import Event, Gap, Row
from framegate.control.service.channels import CAPACITY, ClosedChannels
from framegate.control.status import Outcome
from framegate.control.steering.filter import CLOSED_FIELDS, Filter
from framegate.control.steering.transactions import Changed
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.proxy.network.connection_id import format_connection_id, parse_connection_id
from framegate.proxy.server.link import LinkError
from framegate.proxy.server.rows import ClientRow
from tests.control.service.served import code_of, refused, served
from tests.fakes.plane import channel_row, closed_row
from tests.fakes.serving import Serving


def ids(*texts: str) -> pb2.ChannelSelector:
    return pb2.ChannelSelector(channels=pb2.ChannelIds(ids=texts))


@served()
async def test_a_list_comes_in_pages_and_keeps_to_its_listener(at: Serving) -> None:
    at.plane.add(*(channel_row(f"0-1-{number}") for number in range(1, 6)), channel_row("1-1-1", "plain"))
    stub = ChannelServiceStub(at.channel)
    first = await stub.ListChannels(pb2.ListChannelsRequest(page_size=4, filter="listener=kafka"))
    rest = await stub.ListChannels(pb2.ListChannelsRequest(page_size=4, filter="listener=kafka", page_token=first.next_page_token))
    assert [channel.id for channel in first.channels] == ["0-1-1", "0-1-2", "0-1-3", "0-1-4"]
    assert [channel.id for channel in rest.channels] == ["0-1-5"]
    assert rest.next_page_token == ""


@pytest.mark.parametrize("size", [1, 99, 100, 101, 230, 249, 250, 251])
@served()
async def test_a_page_of_many_slices_is_whole_and_in_order(at: Serving, size: int) -> None:
    at.plane.add(*(channel_row(f"0-1-{number}") for number in range(1, 251)))
    stub = ChannelServiceStub(at.channel)
    page = await stub.ListChannels(pb2.ListChannelsRequest(page_size=size))
    assert [channel.id for channel in page.channels] == [f"0-1-{number}" for number in range(1, min(size, 250) + 1)]
    assert bool(page.next_page_token) == (size <= 250), "behind a full page there may be more"
    if page.next_page_token:
        following = await stub.ListChannels(pb2.ListChannelsRequest(page_size=1, page_token=page.next_page_token))
        assert [channel.id for channel in following.channels] == [f"0-1-{size + 1}"][: 250 - size]


@served()
async def test_the_clients_with_most_are_listed_by_each_measure(at: Serving) -> None:
    at.plane.client_rows = [ClientRow(measure="frames", client=["kafka", "ann", "billing", "10.0.0.1"], amount=7)]
    await at.plane.parts.clients.look()
    answer = await ChannelServiceStub(at.channel).ListTopClients(pb2.ListTopClientsRequest())
    assert [ranking.measure for ranking in answer.rankings] == [1, 2, 3, 4, 5]
    ((client,),) = [ranking.clients for ranking in answer.rankings if ranking.clients]
    assert (client.listener, client.principal, client.client_id, client.address, client.share) == ("kafka", "ann", "billing", "10.0.0.1", 1.0)


@served()
async def test_a_channel_is_got_while_it_is_open_and_after_it_closed(at: Serving) -> None:
    at.plane.add(channel_row("0-1-7"))
    stub = ChannelServiceStub(at.channel)
    before = (await stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))).channel
    at.plane.rows.clear()
    at.plane.tell(closed_row("0-1-7", "peer_reset"))
    after = (await stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))).channel
    assert (before.state, before.HasField("close")) == (pb2.Channel.STATE_OPEN, False)
    assert (after.state, after.close.cause) == (pb2.Channel.STATE_CLOSED, pb2.CAUSE_PEER_RESET)


@served()
async def test_mute_and_unmute_reach_the_plane_and_answer_with_what_is_in_force(at: Serving) -> None:
    at.plane.add(channel_row("0-1-7"))
    stub = ChannelServiceStub(at.channel)
    muted = await stub.MuteChannels(pb2.MuteChannelsRequest(selector=ids("0-1-7", "0-1-8"), reason="incident 7"))
    shown = (await stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))).channel
    freed = await stub.UnmuteChannels(pb2.UnmuteChannelsRequest(selector=pb2.ChannelSelector(filter="listener=kafka")))
    assert (list(muted.affected_channel_ids), list(muted.missing_channel_ids)) == (["0-1-7"], ["0-1-8"])
    assert list(shown.mute_causes) == [pb2.MUTE_CAUSE_ADMIN]
    assert list(freed.affected_channel_ids) == ["0-1-7"]
    assert at.plane.asked[0][2:] == ("incident 7",)
    assert at.plane.asked[1] == ("unmute", "listener=kafka", "")


@served()
async def test_close_is_listed_afterwards_with_its_cause(at: Serving) -> None:
    at.plane.add(channel_row("0-1-7"), channel_row("0-1-8", "plain"))
    stub = ChannelServiceStub(at.channel)
    at.plane.tell(closed_row("0-1-6", "idle"))
    await stub.CloseChannels(pb2.CloseChannelsRequest(selector=ids("0-1-7"), reason="bye"))
    listed = await stub.ListClosedChannels(pb2.ListClosedChannelsRequest())
    assert [(item.id, item.close.cause) for item in listed.channels] == [("0-1-7", pb2.CAUSE_ADMIN), ("0-1-6", pb2.CAUSE_IDLE)]


@served()
async def test_closed_channels_are_filtered_and_ordered_as_open_ones(at: Serving) -> None:
    stub, ages_s = ChannelServiceStub(at.channel), (3, 9, 7, 8)
    for number, age_s in enumerate(ages_s, 1):
        frames = {"request": number, "response": 0}
        row = closed_row(f"0-1-{number}", "idle" if number < 4 else "admin", client_id=f"c-{number}", frames=frames)
        at.plane.tell({**row, "closed_ns": row["opened_ns"] + age_s * 10**9})
    unknown = {"request": None, "response": None}
    at.plane.tell(closed_row("1-1-1", "processor_died", "plain", frames=unknown, bytes=unknown, lost={"bytes": None, **unknown}))
    for chosen, order, wanted in (
        ("cause=idle listener=kafka", "", [3, 2, 1]),
        ("cause=idle client_id=c-[12]", "", [2, 1]),
        ("age>7s", "age", [4, 2]),
        ("age>7s", "age desc", [2, 4]),
        ("request_frames>=3 side=downstream", "request_frames desc", [4, 3]),
        ("lost<1", "", [101]),
        ("cause=limit", "", []),
    ):
        answer = await stub.ListClosedChannels(pb2.ListClosedChannelsRequest(filter=chosen, order_by=order, page_size=1))
        more = pb2.ListClosedChannelsRequest(filter=chosen, order_by=order, page_token=answer.next_page_token)
        rest = (await stub.ListClosedChannels(more)).channels if answer.next_page_token else []
        found = [100 * item.processor_slot + int(item.id.rpartition("-")[2]) for item in (*answer.channels, *rest)]
        assert (found, answer.total_count) == (wanted, len(wanted)), (chosen, order)
    assert answer.next_page_token == ""
    (channel,) = (await stub.ListClosedChannels(pb2.ListClosedChannelsRequest(filter="client_id=c-2"))).channels
    assert channel.client_id == "c-2"
    for request, field in (("held>1", "filter"), ("", "order_by")):
        code, _, named = await refused(stub.ListClosedChannels(pb2.ListClosedChannelsRequest(filter=request, order_by="held")))
        assert (code, set(named)) == (grpc.StatusCode.INVALID_ARGUMENT, {field})


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (pb2.MuteChannelsRequest(), {"selector", "reason"}),
        (pb2.MuteChannelsRequest(selector=ids("7", "0-1-7")), {"selector.channels.ids[0]", "reason"}),
        (pb2.MuteChannelsRequest(selector=ids(), reason="two\nlines"), {"reason"}),
        (pb2.MuteChannelsRequest(selector=ids(), reason="x"), {"selector.channels.ids"}),
        (pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(filter=" "), reason="x"), {"selector.filter"}),
    ],
)
@served()
async def test_every_wrong_field_is_named_at_once(at: Serving, request_: pb2.MuteChannelsRequest, fields: set[str]) -> None:
    code, _, named = await refused(ChannelServiceStub(at.channel).MuteChannels(request_))
    assert (code, set(named)) == (grpc.StatusCode.INVALID_ARGUMENT, fields)
    assert at.plane.asked == []


@served()
async def test_naming_only_channels_that_are_gone_is_not_found(at: Serving) -> None:
    stub = ChannelServiceStub(at.channel)
    for call in (stub.CloseChannels(pb2.CloseChannelsRequest(selector=ids("0-1-7"))), stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))):
        assert await code_of(call) is grpc.StatusCode.NOT_FOUND


class Closed(ClosedChannels):
    """What is recorded waits in the queue until somebody asks."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.queue: list[Event | Gap] = []
        super().__init__(self.take, capacity)

    def take(self) -> list[Event | Gap]:
        taken, self.queue = self.queue, []
        return taken

    def record(self, item: Event | Gap) -> None:
        self.queue.append(item)


def event(row: Row) -> Event:
    return Event(1, 0, "closed", "info", row)


def unread(text: str, read: Callable[[], Row]) -> Event:
    """As a processor's rows come: nobody has read them."""
    return Event(1, 0, "closed", "info", read, subject=int(parse_connection_id(text)))


def texts(closed: ClosedChannels, chosen: str = "") -> list[str]:
    return [format_connection_id(look.row["id"]) for look in asyncio.run(closed.latest(Filter(chosen, fields=CLOSED_FIELDS)))]


def test_the_latest_rows_are_kept_without_gaps_and_chosen_by_a_filter() -> None:
    closed = Closed(capacity=3)
    for number, cause, listener in ((1, "idle", "kafka"), (2, "idle", "kafka"), (3, "idle", "plain"), (4, "admin", "plain")):
        closed.record(event(closed_row(f"0-1-{number}", cause, listener)))
    closed.record(Gap(1, 3, 2))
    assert texts(closed) == ["0-1-4", "0-1-3", "0-1-2"]
    assert closed.get(parse_connection_id("0-1-1")) is None
    assert texts(closed, "listener=plain cause=idle") == ["0-1-3"]


def test_a_row_is_read_once_and_not_before_somebody_asks() -> None:
    closed = Closed()
    asked: list[str] = []

    def read(text: str) -> Row:
        asked.append(text)
        return closed_row(text, "idle")

    for text in ("0-1-1", "0-1-2"):
        closed.record(unread(text, lambda text=text: read(text)))  # type: ignore[misc]
    assert asked == []
    row = closed.get(parse_connection_id("0-1-2"))
    assert row is not None
    assert row["cause"] == "idle"
    assert texts(closed) == ["0-1-2", "0-1-1"]
    assert texts(closed) == ["0-1-2", "0-1-1"]
    assert asked == ["0-1-2", "0-1-1"]


@pytest.mark.parametrize("by_id", [True, False])
def test_a_row_that_cannot_be_decoded_raises_once(by_id: bool) -> None:
    def fail() -> Row:
        raise LinkError("a closed row cannot be read")

    closed = Closed()
    closed.record(event(closed_row("0-1-1", "idle")))
    closed.record(unread("0-1-2", fail))
    with pytest.raises(LinkError):
        closed.get(parse_connection_id("0-1-2")) if by_id else texts(closed)
    assert closed.get(parse_connection_id("0-1-2")) is None
    assert texts(closed) == ["0-1-1"]


def test_the_event_loop_serves_others_while_many_rows_are_decoded() -> None:
    async def main() -> None:
        closed = Closed()
        for number in range(1, 200):
            closed.record(unread(f"0-1-{number}", lambda number=number: closed_row(f"0-1-{number}", "idle")))  # type: ignore[misc]
        reading = asyncio.ensure_future(closed.latest(Filter(fields=CLOSED_FIELDS)))
        await asyncio.sleep(0)
        assert not reading.done()
        closed.record(event(closed_row("0-1-200", "idle")))
        assert len(await reading) == 199

    asyncio.run(main())


@served()
async def test_a_filter_and_an_order_choose_and_rates_are_measured(at: Serving) -> None:
    sizes = (5, 7, 7, 1)
    at.plane.add(
        *(channel_row(f"0-1-{number}", leased=size, client_id=f"c-{number}") for number, size in enumerate(sizes, 1)), channel_row("1-1-1", "plain")
    )
    stub = ChannelServiceStub(at.channel)
    answer = await stub.ListChannels(pb2.ListChannelsRequest(filter="listener=kafka", order_by="held desc", page_size=3))
    assert ([item.id for item in answer.channels], answer.total_count, answer.next_page_token) == (["0-1-2", "0-1-3", "0-1-1"], 4, "")
    first = await stub.ListChannels(pb2.ListChannelsRequest(filter="held>1 listener=kafka", page_size=2))
    rest = await stub.ListChannels(pb2.ListChannelsRequest(filter="held>1 listener=kafka", page_size=2, page_token=first.next_page_token))
    assert [[item.id for item in answer.channels] for answer in (first, rest)] == [["0-1-1", "0-1-2"], ["0-1-3"]]
    request = pb2.ListChannelsRequest(filter="client_id=c-1", rate_window=Duration(nanos=50_000_000))
    call = asyncio.ensure_future(stub.ListChannels(request))
    await asyncio.sleep(0.01)
    at.plane.add(channel_row("0-1-1", client_id="c-1", bytes={"request": 5300, "response": 200}))
    (channel,) = (await call).channels
    assert 0 < channel.request.bytes_per_second <= 5000 / 0.05
    assert (channel.response.bytes_per_second, channel.response.HasField("frames_per_second")) == (0, True)
    (channel,) = (await stub.ListChannels(pb2.ListChannelsRequest(filter="client_id=c-1"))).channels
    assert not channel.request.HasField("bytes_per_second")


@served()
async def test_wrong_filters_and_orders_are_named(at: Serving) -> None:
    stub = ChannelServiceStub(at.channel)
    for request, field in (
        (pb2.ListChannelsRequest(filter="colour=red"), "filter"),
        (pb2.ListChannelsRequest(order_by="colour"), "order_by"),
        (pb2.ListChannelsRequest(order_by="held down"), "order_by"),
        (pb2.ListChannelsRequest(order_by="held", page_token="0:1"), "page_token"),
        (pb2.ListChannelsRequest(rate_window=Duration(seconds=5, nanos=1)), "rate_window"),
        (pb2.ListChannelsRequest(page_token="x"), "page_token"),
    ):
        code, _, named = await refused(stub.ListChannels(request))
        assert (code, set(named)) == (grpc.StatusCode.INVALID_ARGUMENT, {field})


@served()
async def test_a_throttle_is_shown_and_what_is_kept_is_listed_and_deleted(at: Serving) -> None:
    at.plane.add(channel_row("0-1-7"))
    stub = ChannelServiceStub(at.channel)
    selector = pb2.ChannelSelector(filter="listener=kafka")
    request = pb2.ThrottleChannelsRequest(selector=selector, reason="slow", request_bytes_per_second=1000, ttl=Duration(seconds=60), standing=True)
    made = await stub.ThrottleChannels(request)
    shown = (await stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))).channel.throttle
    assert (shown.request_bytes_per_second, shown.response_bytes_per_second, shown.reason) == (1000, 0, "slow")
    assert (list(made.affected_channel_ids), made.affected_count, made.hint) == (["0-1-7"], 1, "")
    (listed,) = (await stub.ListChannelActions(pb2.ListChannelActionsRequest())).actions
    assert listed == made.action
    assert (listed.id, listed.verb, listed.filter, listed.standing) == ("1", pb2.ChannelAction.VERB_THROTTLE, "listener=kafka", True)
    assert listed.expire_time.seconds - listed.create_time.seconds == 60
    assert (await stub.DeleteChannelAction(pb2.DeleteChannelActionRequest(id="1"))).action == listed
    for number in ("1", "x", "9" * 30):
        assert await code_of(stub.DeleteChannelAction(pb2.DeleteChannelActionRequest(id=number))) is grpc.StatusCode.NOT_FOUND
    assert [(row["method"].rpartition("/")[2], row["result"]) for row in at.plane.audits[:2]] == [
        ("ThrottleChannels", "OK"),
        ("DeleteChannelAction", "OK"),
    ]
    assert at.plane.audits[0]["after"] == {"affected": ["0-1-7"], "affected_count": 1, "missing": [], "action": 1}


@served()
async def test_an_answer_says_that_clients_can_come_back_and_bounds_are_checked(at: Serving) -> None:
    at.plane.add(*(channel_row(f"0-1-{number}") for number in range(3)))
    stub = ChannelServiceStub(at.channel)
    selector = pb2.ChannelSelector(filter="listener=kafka")
    code, reason, _ = await refused(stub.CloseChannels(pb2.CloseChannelsRequest(selector=selector, max_affected_count=2)))
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TOO_MANY_AFFECTED")
    for dry, most in ((True, 0), (False, 3)):
        answer = await stub.CloseChannels(pb2.CloseChannelsRequest(selector=selector, validate_only=dry, max_affected_count=most))
        assert (answer.affected_count, answer.HasField("action")) == (3, False)
        assert "a client can connect again" in answer.hint
    assert at.plane.audits[-2]["after"] is None, "nothing was changed"
    throttle = pb2.ThrottleChannelsRequest(selector=selector, max_affected_count=100_001, request_bytes_per_second=-1, ttl=Duration(nanos=1))
    _, _, named = await refused(stub.ThrottleChannels(throttle))
    assert set(named) == {"max_affected_count", "request_bytes_per_second", "ttl"}


@served()
async def test_what_was_done_although_the_call_failed_is_in_its_audit_row_and_not_done_again(at: Serving) -> None:
    at.plane.failure = UnavailableError("processor 1 has not confirmed it", reason="CHANGE_PENDING")
    at.plane.failure.changed = Changed(None, Outcome(affected=(parse_connection_id("0-1-7"),), missing=()))
    request = pb2.MuteChannelsRequest(selector=ids("0-1-7"), reason="x", request_id="7f1e8a52-0b3c-4d7e-9a66-0d5f4c1b2a39")
    for _ in range(2):
        assert await refused(ChannelServiceStub(at.channel).MuteChannels(request)) == (grpc.StatusCode.UNAVAILABLE, "CHANGE_PENDING", [])
        at.plane.failure = None
    assert at.plane.audits[0]["after"] == {"affected": ["0-1-7"], "affected_count": 1, "missing": []}
