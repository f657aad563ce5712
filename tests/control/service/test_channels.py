"""ChannelService over a real socket."""

import grpc
import pytest

from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from tests.fakes.plane import channel_row, closed_row
from tests.fakes.serving import Serving, run


def ids(*texts: str) -> pb2.ChannelSelector:
    return pb2.ChannelSelector(channels=pb2.ChannelIds(ids=texts))


def test_a_list_comes_in_pages_and_keeps_to_its_listener() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(*(channel_row(f"0-1-{number}") for number in range(1, 6)), channel_row("1-1-1", "plain"))
        stub = ChannelServiceStub(at.channel)
        first = await stub.ListChannels(pb2.ListChannelsRequest(page_size=4, listener="kafka"))
        rest = await stub.ListChannels(pb2.ListChannelsRequest(page_size=4, listener="kafka", page_token=first.next_page_token))
        assert [channel.id for channel in first.channels] == ["0-1-1", "0-1-2", "0-1-3", "0-1-4"]
        assert [channel.id for channel in rest.channels] == ["0-1-5"]
        assert rest.next_page_token == ""

    run(body)


@pytest.mark.parametrize("size", [1, 99, 100, 101, 230, 249, 250, 251])
def test_a_page_of_many_slices_is_whole_and_in_order(size: int) -> None:
    async def body(at: Serving) -> None:
        at.plane.add(*(channel_row(f"0-1-{number}") for number in range(1, 251)))
        stub = ChannelServiceStub(at.channel)
        page = await stub.ListChannels(pb2.ListChannelsRequest(page_size=size))
        assert [channel.id for channel in page.channels] == [f"0-1-{number}" for number in range(1, min(size, 250) + 1)]
        assert bool(page.next_page_token) == (size < 250)
        if page.next_page_token:
            following = await stub.ListChannels(pb2.ListChannelsRequest(page_size=1, page_token=page.next_page_token))
            assert [channel.id for channel in following.channels] == [f"0-1-{size + 1}"]

    run(body)


def test_a_channel_is_got_while_it_is_open_and_after_it_closed() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-7"))
        stub = ChannelServiceStub(at.channel)
        before = (await stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))).channel
        at.plane.rows.clear()
        at.plane.tell(closed_row("0-1-7", "peer_reset"))
        after = (await stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))).channel
        assert (before.state, before.HasField("close")) == (pb2.Channel.STATE_OPEN, False)
        assert (after.state, after.close.cause) == (pb2.Channel.STATE_CLOSED, pb2.CAUSE_PEER_RESET)

    run(body)


def test_mute_and_unmute_reach_the_plane_and_answer_with_what_is_in_force() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-7"))
        stub = ChannelServiceStub(at.channel)
        muted = await stub.MuteChannels(pb2.MuteChannelsRequest(selector=ids("0-1-7", "0-1-8"), reason="incident 7"))
        shown = (await stub.GetChannel(pb2.GetChannelRequest(id="0-1-7"))).channel
        freed = await stub.UnmuteChannels(pb2.UnmuteChannelsRequest(selector=pb2.ChannelSelector(listener="kafka")))
        assert (list(muted.affected_channel_ids), list(muted.missing_channel_ids)) == (["0-1-7"], ["0-1-8"])
        assert list(shown.mute_causes) == [pb2.MUTE_CAUSE_ADMIN]
        assert list(freed.affected_channel_ids) == ["0-1-7"]
        assert at.plane.asked[0][2:] == (None, "incident 7")
        assert at.plane.asked[1] == ("unmute", (), "kafka", "")

    run(body)


def test_close_is_listed_afterwards_with_its_cause() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-7"), channel_row("0-1-8", "plain"))
        stub = ChannelServiceStub(at.channel)
        at.plane.tell(closed_row("0-1-6", "idle"))
        await stub.CloseChannels(pb2.CloseChannelsRequest(selector=ids("0-1-7"), reason="bye"))
        listed = await stub.ListClosedChannels(pb2.ListClosedChannelsRequest())
        filtered = await stub.ListClosedChannels(pb2.ListClosedChannelsRequest(cause=pb2.CAUSE_IDLE))
        assert [(item.id, item.close.cause) for item in listed.channels] == [("0-1-7", pb2.CAUSE_ADMIN), ("0-1-6", pb2.CAUSE_IDLE)]
        assert [item.id for item in filtered.channels] == ["0-1-6"]

    run(body)


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (pb2.MuteChannelsRequest(), {"selector", "reason"}),
        (pb2.MuteChannelsRequest(selector=ids("7", "0-1-7"), reason="x" * 257), {"selector.channels.ids[0]", "reason"}),
        (pb2.MuteChannelsRequest(selector=ids(), reason="two\nlines"), {"selector.channels.ids", "reason"}),
        (pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(listener=""), reason="x"), {"selector.listener"}),
    ],
)
def test_every_wrong_field_is_named_at_once(request_: pb2.MuteChannelsRequest, fields: set[str]) -> None:
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    async def body(at: Serving) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ChannelServiceStub(at.channel).MuteChannels(request_)
        status = rpc_status.from_call(caught.value)
        bad = error_details_pb2.BadRequest()
        assert status.details[1].Unpack(bad)
        assert {violation.field for violation in bad.field_violations} == fields
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert at.plane.asked == []

    run(body)


def test_naming_only_channels_that_are_gone_is_not_found() -> None:
    async def body(at: Serving) -> None:
        stub = ChannelServiceStub(at.channel)
        for call in (
            stub.CloseChannels(pb2.CloseChannelsRequest(selector=ids("0-1-7"))),
            stub.GetChannel(pb2.GetChannelRequest(id="0-1-7")),
            stub.ListChannels(pb2.ListChannelsRequest(listener="nobody")),
            stub.ListClosedChannels(pb2.ListClosedChannelsRequest(listener="nobody")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    run(body)
