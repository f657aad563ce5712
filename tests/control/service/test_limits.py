"""LimitService over a real socket."""

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from control.gen.framegate.control.v1 import limit_service_pb2 as pb2
from control.gen.framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from tests.fakes.serving import Serving, run


def update(listener: str, size: int | None, *paths: str) -> pb2.UpdateLimitRequest:
    return pb2.UpdateLimitRequest(limit=pb2.Limit(listener=listener, max_receive_size_bytes=size), update_mask=FieldMask(paths=paths))


def test_limits_are_listed_got_and_updated() -> None:
    async def body(at: Serving) -> None:
        stub = LimitServiceStub(at.channel)
        listed = await stub.ListLimits(pb2.ListLimitsRequest(page_size=1))
        updated = await stub.UpdateLimit(update("plain", 4096))
        got = await stub.GetLimit(pb2.GetLimitRequest(listener="plain"))
        assert [limit.listener for limit in listed.limits] == ["kafka"]
        assert listed.next_page_token
        assert updated.limit.max_receive_size_bytes == got.limit.max_receive_size_bytes == at.plane.limits["plain"] == 4096
        (audit,) = at.plane.audits
        assert (audit["before"], audit["after"]) == ({"max_receive_size_bytes": 100 * 1024 * 1024}, {"max_receive_size_bytes": 4096})

    run(body)


@pytest.mark.parametrize("paths", [(), ("max_receive_size_bytes",), ("*",)])
def test_the_mask_may_be_absent_a_path_or_a_star(paths: tuple[str, ...]) -> None:
    async def body(at: Serving) -> None:
        await LimitServiceStub(at.channel).UpdateLimit(update("plain", 1, *paths))
        assert at.plane.limits["plain"] == 1

    run(body)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (update("plain", 0), grpc.StatusCode.INVALID_ARGUMENT),
        (update("plain", 2**31), grpc.StatusCode.INVALID_ARGUMENT),
        (update("plain", None), grpc.StatusCode.INVALID_ARGUMENT),
        (update("plain", None, "max_receive_size_bytes"), grpc.StatusCode.INVALID_ARGUMENT),
        (update("plain", 5, "colour"), grpc.StatusCode.INVALID_ARGUMENT),
        (update("", 5), grpc.StatusCode.INVALID_ARGUMENT),
        (update("nobody", 5), grpc.StatusCode.NOT_FOUND),
    ],
)
def test_a_bad_update_changes_nothing(request_: pb2.UpdateLimitRequest, code: grpc.StatusCode) -> None:
    async def body(at: Serving) -> None:
        before = dict(at.plane.limits)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await LimitServiceStub(at.channel).UpdateLimit(request_)
        assert caught.value.code() is code
        assert at.plane.limits == before

    run(body)


def test_the_largest_int32_is_in_range() -> None:
    async def body(at: Serving) -> None:
        at.plane.pool = 2 * 2**31
        await LimitServiceStub(at.channel).UpdateLimit(update("plain", 2**31 - 1))
        assert at.plane.limits["plain"] == 2**31 - 1

    run(body)
