"""LimitService over a real socket, and quotas as messages and back."""

import dataclasses

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from framegate.control.service.limits import QUOTA_FIELDS, limit_message, node_message, overrides_of, quotas_of
from framegate.control.service.validate import Violations
from framegate.control.status import Limit, NodeLimits
from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from framegate.proxy.config.limits import LimitOverride, LimitsConfig, RateLimits
from tests.control.service.served import code_of, failure_of, served
from tests.fakes.serving import Serving


def update(listener: str, size: int | None, *paths: str) -> pb2.UpdateLimitRequest:
    return pb2.UpdateLimitRequest(limit=pb2.Limit(listener=listener, max_receive_size_bytes=size), update_mask=FieldMask(paths=paths))


@served()
async def test_limits_are_listed_got_and_updated(at: Serving) -> None:
    stub = LimitServiceStub(at.channel)
    listed = await stub.ListLimits(pb2.ListLimitsRequest(page_size=1))
    updated = await stub.UpdateLimit(update("plain", 4096))
    got = await stub.GetLimit(pb2.GetLimitRequest(listener="plain"))
    assert [limit.listener for limit in listed.limits] == ["kafka"]
    assert listed.next_page_token
    assert updated.limit.max_receive_size_bytes == got.limit.max_receive_size_bytes == at.plane.limits["plain"] == 4096
    (audit,) = at.plane.audits
    assert (audit["before"], audit["after"]) == ({"max_receive_size_bytes": 100 * 1024 * 1024}, {"max_receive_size_bytes": 4096})


@pytest.mark.parametrize("paths", [(), ("max_receive_size_bytes",), ("*",)])
@served()
async def test_the_mask_may_be_absent_a_path_or_a_star(at: Serving, paths: tuple[str, ...]) -> None:
    request = update("plain", 1, *paths)
    for number, name in enumerate(QUOTA_FIELDS if "*" in paths else ()):
        setattr(request.limit, name, number)
    await LimitServiceStub(at.channel).UpdateLimit(request)
    assert at.plane.limits["plain"] == 1
    assert at.plane.quotas["plain"].response_frames_rate == (5 if "*" in paths else 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (update("plain", None), grpc.StatusCode.INVALID_ARGUMENT),
        (update("plain", None, "max_receive_size_bytes"), grpc.StatusCode.INVALID_ARGUMENT),
        (update("plain", 5, "colour"), grpc.StatusCode.INVALID_ARGUMENT),
        (update("plain", 5, "*"), grpc.StatusCode.INVALID_ARGUMENT),
        (update("", 5), grpc.StatusCode.INVALID_ARGUMENT),
        (update("nobody", 5), grpc.StatusCode.NOT_FOUND),
    ],
)
@served()
async def test_a_bad_update_changes_nothing(at: Serving, request_: pb2.UpdateLimitRequest, code: grpc.StatusCode) -> None:
    before = dict(at.plane.limits)
    assert await code_of(LimitServiceStub(at.channel).UpdateLimit(request_)) is code
    assert at.plane.limits == before


@served()
async def test_the_largest_int32_is_in_range(at: Serving) -> None:
    at.plane.pool = 2 * 2**31
    await LimitServiceStub(at.channel).UpdateLimit(update("plain", 2**31 - 1))
    assert at.plane.limits["plain"] == 2**31 - 1


@served()
async def test_quotas_of_a_listener_change_alone_and_are_audited(at: Serving) -> None:
    stub = LimitServiceStub(at.channel)
    limit = pb2.Limit(listener="plain", max_connection_count=5, request_bytes_per_second=1 << 40)
    updated = await stub.UpdateLimit(pb2.UpdateLimitRequest(limit=limit))
    assert at.plane.quotas["plain"] == RateLimits(connections=5, request_bytes_rate=1 << 40)
    assert (updated.limit.max_connection_count, updated.limit.max_receive_size_bytes) == (5, 100 * 1024 * 1024)
    zero = pb2.Limit(listener="plain", max_connection_count=0)
    await stub.UpdateLimit(pb2.UpdateLimitRequest(limit=zero, update_mask=FieldMask(paths=["max_connection_count"])))
    assert at.plane.quotas["plain"] == RateLimits(request_bytes_rate=1 << 40)
    first, second = at.plane.audits
    assert (first["before"], first["after"]) == (
        {"max_connection_count": 10, "request_bytes_per_second": 0},
        {"max_connection_count": 5, "request_bytes_per_second": 1 << 40},
    )
    assert (second["before"], second["after"]) == ({"max_connection_count": 5}, {"max_connection_count": 0})


@served()
async def test_the_nodes_quotas_are_got_and_updated(at: Serving) -> None:
    stub = LimitServiceStub(at.channel)
    before = (await stub.GetNodeLimits(pb2.GetNodeLimitsRequest())).node_limits
    assert (before.max_connection_count, list(before.overrides), before.protected_listener) == (0, [], "")
    wanted = pb2.NodeLimits(
        connections_per_second=7,
        per_address=pb2.AddressLimits(max_connection_count=3),
        overrides=[
            pb2.LimitOverride(network="10.0.0.0/8", limits=pb2.AddressLimits(max_connection_count=0)),
            pb2.LimitOverride(network="::/0", access=pb2.NETWORK_ACCESS_DENY),
        ],
        etag=before.etag,
    )
    after = (await stub.UpdateNodeLimits(pb2.UpdateNodeLimitsRequest(node_limits=wanted))).node_limits
    assert at.plane.node_quotas == LimitsConfig(
        connection_rate=7,
        per_address=RateLimits(connections=3),
        overrides=(LimitOverride(network="10.0.0.0/8", connections=0), LimitOverride(network="::/0", access="deny")),
    )
    assert after == (await stub.GetNodeLimits(pb2.GetNodeLimitsRequest())).node_limits
    assert after.overrides[0].limits.HasField("max_connection_count")
    assert not after.overrides[0].limits.HasField("connections_per_second")
    assert await code_of(stub.UpdateNodeLimits(pb2.UpdateNodeLimitsRequest(node_limits=wanted))) is grpc.StatusCode.ABORTED, "the etag is of what was"
    none = pb2.UpdateNodeLimitsRequest(node_limits=pb2.NodeLimits(), update_mask=FieldMask(paths=["overrides"]))
    assert list((await stub.UpdateNodeLimits(none)).node_limits.overrides) == []
    per_address = pb2.NodeLimits(per_address=pb2.AddressLimits(connections_per_second=9))
    await stub.UpdateNodeLimits(pb2.UpdateNodeLimitsRequest(node_limits=per_address))
    assert at.plane.node_quotas == LimitsConfig(connection_rate=7, per_address=RateLimits(connections=3, connection_rate=9))
    assert at.plane.audits[0]["after"]["overrides"][1] == {"network": "::/0", "access": "NETWORK_ACCESS_DENY", "limits": {}}


def node(*paths: str, **fields: object) -> pb2.UpdateNodeLimitsRequest:
    return pb2.UpdateNodeLimitsRequest(node_limits=pb2.NodeLimits(**fields), update_mask=FieldMask(paths=paths))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (node(), "node_limits"),
        (node(etag="x"), "node_limits"),
        (node(protected_listener="kafka"), "node_limits"),
        (node("protected_listener", protected_listener="kafka"), "update_mask"),
        (node("max_connection_count"), "node_limits.max_connection_count"),
        (node(overrides=[pb2.LimitOverride(network="10.0.0.1/8")]), "overrides[0].network"),
        (node(overrides=[pb2.LimitOverride()]), "overrides[0].network"),
        (node(overrides=[pb2.LimitOverride(network="10.0.0.0/8")] * 2), "overrides[1].network"),
        (
            node(overrides=[pb2.LimitOverride(network="10.0.0.0/8", limits=pb2.AddressLimits(connections_per_second=-1))]),
            "node_limits.overrides[0].limits.connections_per_second",
        ),
    ],
)
@served()
async def test_a_bad_update_of_the_nodes_quotas_changes_nothing_and_names_the_field(
    at: Serving, request_: pb2.UpdateNodeLimitsRequest, field: str
) -> None:
    before = at.plane.node_quotas
    failure = await failure_of(LimitServiceStub(at.channel).UpdateNodeLimits(request_))
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{field}: " in str(failure.details())
    assert at.plane.node_quotas == before


SIX = RateLimits(connections=1, connection_rate=2, request_bytes_rate=3, response_bytes_rate=4, request_frames_rate=5, response_frames_rate=6)


def test_each_quota_of_the_model_has_its_field_in_every_message() -> None:
    assert list(QUOTA_FIELDS.values()) == [field.name for field in dataclasses.fields(RateLimits)]
    for message in (
        limit_message(Limit(listener="a", max_receive_size=9, quotas=SIX)),
        node_message(NodeLimits(quotas=LimitsConfig(per_address=SIX), etag="")).per_address,
    ):
        assert [getattr(message, name) for name in QUOTA_FIELDS] == [1, 2, 3, 4, 5, 6]
        violations = Violations()
        assert RateLimits(**quotas_of(message, QUOTA_FIELDS, "x", violations)) == SIX
        violations.check()


def test_overrides_come_back_as_they_were_what_they_do_not_say_included() -> None:
    overrides = (LimitOverride(network="10.0.0.0/8", connections=0, response_bytes_rate=7), LimitOverride(network="::/0", access="deny"))
    message = node_message(NodeLimits(quotas=LimitsConfig(connections=4, overrides=overrides, protected_listener="b"), etag="e"))
    assert (message.max_connection_count, message.protected_listener, message.etag) == (4, "b", "e")
    violations = Violations()
    assert overrides_of(message.overrides, "x", violations) == overrides
    assert overrides_of([pb2.LimitOverride(network="10.0.0.0/8")], "x", violations) == (LimitOverride(network="10.0.0.0/8"),)
    violations.check()
