"""LimitService over a real socket, and quotas as messages and back."""

import dataclasses

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from framegate.control.service.limits import NODE, node_message
from framegate.control.service.validate import Violations
from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.proxy.config.limits import LimitOverride, LimitsConfig, ListenerLimits, RateLimits
from tests.control.service.served import code_of, failure_of, served
from tests.fakes.cells import fill
from tests.fakes.serving import Serving


def update(listener: str, size: int | None, *paths: str) -> pb2.UpdateLimitRequest:
    return pb2.UpdateLimitRequest(limit=pb2.Limit(listener=listener, max_receive_size_bytes=size), update_mask=FieldMask(paths=paths))


@served()
async def test_limits_are_listed_got_and_updated(at: Serving) -> None:
    listed = await at.api.ListLimits(pb2.ListLimitsRequest(page_size=1))
    updated = await at.api.UpdateLimit(update("plain", 4096))
    got = await at.api.GetLimit(pb2.GetLimitRequest(listener="plain"))
    assert [limit.listener for limit in listed.limits] == ["kafka"]
    assert listed.next_page_token
    assert updated.limit.max_receive_size_bytes == got.limit.max_receive_size_bytes == at.plane.limits["plain"] == 4096
    (audit,) = at.plane.audits
    assert (audit["before"], audit["after"]) == ({"max_receive_size_bytes": 100 * 1024 * 1024}, {"max_receive_size_bytes": 4096})


@served()
async def test_the_largest_int32_is_in_range(at: Serving) -> None:
    at.plane.pool = 2 * 2**31
    await at.api.UpdateLimit(update("plain", 2**31 - 1))
    assert at.plane.limits["plain"] == 2**31 - 1


@served()
async def test_quotas_of_a_listener_change_alone_and_are_audited(at: Serving) -> None:
    limit = pb2.Limit(listener="plain", max_connection_count=5, request_bytes_per_second=1 << 40)
    updated = await at.api.UpdateLimit(pb2.UpdateLimitRequest(limit=limit))
    assert at.plane.quotas["plain"] == ListenerLimits(connections=5, request_bytes_rate=1 << 40)
    assert (updated.limit.max_connection_count, updated.limit.max_receive_size_bytes) == (5, 100 * 1024 * 1024)
    zero = pb2.Limit(listener="plain", max_connection_count=0)
    await at.api.UpdateLimit(pb2.UpdateLimitRequest(limit=zero, update_mask=FieldMask(paths=["max_connection_count"])))
    assert at.plane.quotas["plain"] == ListenerLimits(request_bytes_rate=1 << 40)
    first, second = at.plane.audits
    assert (first["before"], first["after"]) == (
        {"max_connection_count": 10, "request_bytes_per_second": 0},
        {"max_connection_count": 5, "request_bytes_per_second": 1 << 40},
    )
    assert (second["before"], second["after"]) == ({"max_connection_count": 5}, {"max_connection_count": 0})


@served()
async def test_the_nodes_quotas_are_got_and_updated(at: Serving) -> None:
    before = (await at.api.GetNodeLimits(pb2.GetNodeLimitsRequest())).node_limits
    assert (before.max_connection_count, list(before.overrides), before.protected_listener) == (0, [], "")
    wanted = pb2.NodeLimits(
        connections_per_second=7,
        per_address=pb2.AddressLimits(max_connection_count=3),
        overrides=[
            pb2.LimitOverride(network="10.0.0.0/8", max_connection_count=0),
            pb2.LimitOverride(network="::/0", access=pb2.NETWORK_ACCESS_DENY),
        ],
        etag=before.etag,
    )
    after = (await at.api.UpdateNodeLimits(pb2.UpdateNodeLimitsRequest(node_limits=wanted))).node_limits
    assert at.plane.node_quotas == LimitsConfig(
        connection_rate=7,
        per_address=RateLimits(connections=3),
        overrides=(LimitOverride(network="10.0.0.0/8", connections=0), LimitOverride(network="::/0", access="deny")),
    )
    assert after == (await at.api.GetNodeLimits(pb2.GetNodeLimitsRequest())).node_limits
    assert after.overrides[0].HasField("max_connection_count")
    assert not after.overrides[0].HasField("connections_per_second")
    late = at.api.UpdateNodeLimits(pb2.UpdateNodeLimitsRequest(node_limits=wanted))
    assert await code_of(late) is grpc.StatusCode.ABORTED, "the etag is of what was"
    none = pb2.UpdateNodeLimitsRequest(node_limits=pb2.NodeLimits(), update_mask=FieldMask(paths=["overrides"]))
    assert list((await at.api.UpdateNodeLimits(none)).node_limits.overrides) == []
    per_address = pb2.NodeLimits(per_address=pb2.AddressLimits(connections_per_second=9))
    await at.api.UpdateNodeLimits(pb2.UpdateNodeLimitsRequest(node_limits=per_address))
    assert at.plane.node_quotas == LimitsConfig(connection_rate=7, per_address=RateLimits(connections=3, connection_rate=9))
    assert at.plane.audits[0]["after"]["overrides"][1] == {"network": "::/0", "access": "deny"}
    whole = pb2.UpdateNodeLimitsRequest(node_limits=per_address, update_mask=FieldMask(paths=["per_address"]))
    await at.api.UpdateNodeLimits(whole)
    assert at.plane.node_quotas.per_address == RateLimits(connection_rate=9), "what a mask names is replaced"


def node(*paths: str, **fields: object) -> pb2.UpdateNodeLimitsRequest:
    return pb2.UpdateNodeLimitsRequest(node_limits=pb2.NodeLimits(**fields), update_mask=FieldMask(paths=paths))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (node(), "node_limits"),
        (node(etag="x"), "node_limits"),
        (node(protected_listener="kafka"), "node_limits"),
        (node("protected_listener", protected_listener="kafka"), "update_mask"),
        (node("per_address.colour"), "update_mask"),
        (node(overrides=[pb2.LimitOverride(network="10.0.0.1/8")]), "node_limits.overrides[0].network"),
        (node(overrides=[pb2.LimitOverride()]), "node_limits.overrides[0].network"),
        (node(overrides=[pb2.LimitOverride(network="10.0.0.0/8")] * 2), "node_limits.overrides[1].network"),
        (node(overrides=[pb2.LimitOverride(network="10.0.0.0/8", connections_per_second=-1)]), "node_limits.overrides[0].connections_per_second"),
    ],
)
@served()
async def test_a_bad_update_of_the_nodes_quotas_changes_nothing_and_names_the_field(
    at: Serving, request_: pb2.UpdateNodeLimitsRequest, field: str
) -> None:
    before = at.plane.node_quotas
    failure = await failure_of(at.api.UpdateNodeLimits(request_))
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{field}: " in str(failure.details())
    assert at.plane.node_quotas == before


def test_limits_come_back_as_they_were_what_they_do_not_say_included() -> None:
    overrides = (LimitOverride(network="10.0.0.0/8", connections=0, response_bytes_rate=7), LimitOverride(network="::/0", access="deny"))
    limits = LimitsConfig(connections=4, per_address=RateLimits(connection_rate=2), overrides=overrides, protected_listener="b")
    message = node_message(limits)
    assert (message.max_connection_count, message.protected_listener) == (4, "b")
    violations = Violations()
    changes = NODE.changes(message, NODE.fields, violations)
    violations.check()
    assert dataclasses.replace(limits, **{**changes, "per_address": RateLimits(**changes["per_address"])}) == limits


@served()
async def test_only_a_dry_run_has_a_forecast(at: Serving) -> None:
    fill(at.plane, 1, {("framegate.frame.size", "downstream", "plain"): [3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]})
    request = update("plain", 1024)
    request.validate_only = True
    found = (await at.api.UpdateLimit(request)).size_forecast
    assert (found.frame_count, found.least_refused_count, found.most_refused_count, found.HasField("window")) == (12, 5, 5, True)
    assert not (await at.api.UpdateLimit(update("plain", 1024))).HasField("size_forecast")
