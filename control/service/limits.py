"""LimitService. Quotas are the same six of a listener, of the node, of an address and of a network's addresses."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from framegate.control.service.interceptor import Context, note
from framegate.control.service.quoting import shown
from framegate.control.service.validate import Violations, changed_fields, check_required, page, required
from framegate.control.status import Limit, NodeLimits
from framegate.control.steering import limits as steering
from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceServicer
from framegate.proxy.config.key import keys
from framegate.proxy.config.limits import LimitOverride, RateLimits
from framegate.proxy.config.model import MAX_RECEIVE_SIZE

__all__ = ["NODE_FIELDS", "QUOTA_FIELDS", "Limits", "limit_message", "node_message", "overrides_of", "quotas_of"]

QUOTA_FIELDS: Final = {
    "max_connection_count": "connections",
    "connections_per_second": "connection_rate",
    "request_bytes_per_second": "request_bytes_rate",
    "response_bytes_per_second": "response_bytes_rate",
    "request_frames_per_second": "request_frames_rate",
    "response_frames_per_second": "response_frames_rate",
}
"""The model's names by the API's."""
NODE_FIELDS: Final = (*QUOTA_FIELDS, "per_address", "overrides")
"""The fields of NodeLimits that can be changed."""
_SIZE: Final = "max_receive_size_bytes"


class Limits(LimitServiceServicer):
    """Shows and changes the limits of clients."""

    def __init__(self, limits: steering.Limits) -> None:
        self._limits = limits

    async def ListLimits(self, request: pb2.ListLimitsRequest, context: Context) -> pb2.ListLimitsResponse:
        """One page of limits, by listener name."""
        limits = sorted(self._limits.get(), key=lambda limit: limit.listener)
        chosen, token = page([(limit.listener, limit) for limit in limits], request.page_size, request.page_token)
        return pb2.ListLimitsResponse(limits=[limit_message(limit) for limit in chosen], next_page_token=token)

    async def GetLimit(self, request: pb2.GetLimitRequest, context: Context) -> pb2.GetLimitResponse:
        check_required(request.listener, "listener")
        (limit,) = self._limits.get(request.listener)
        return pb2.GetLimitResponse(limit=limit_message(limit))

    async def UpdateLimit(self, request: pb2.UpdateLimitRequest, context: Context) -> pb2.UpdateLimitResponse:
        """Change maxReceiveSize and quotas in every processor or in none."""
        violations, limit = Violations(), request.limit
        required(limit.listener, "limit.listener", violations)
        changed = changed_fields(limit, request.update_mask, sorted((_SIZE, *QUOTA_FIELDS)), "limit", violations)
        size = limit.max_receive_size_bytes if _SIZE in changed else None
        if size is not None and limit.HasField(_SIZE) and not MAX_RECEIVE_SIZE.takes(size):
            violations.add(f"limit.{_SIZE}", f"must be {MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most}, not {size}")
        quotas = quotas_of(limit, changed - {_SIZE}, "limit", violations)
        violations.check()
        (before,) = self._limits.get(limit.listener)
        note(before=_named(limit_message(before), changed))
        after = limit_message(await self._limits.change(limit.listener, size, quotas))
        note(after=_named(after, changed))
        return pb2.UpdateLimitResponse(limit=after)

    async def GetNodeLimits(self, request: pb2.GetNodeLimitsRequest, context: Context) -> pb2.GetNodeLimitsResponse:
        return pb2.GetNodeLimitsResponse(node_limits=node_message(self._limits.get_node()))

    async def UpdateNodeLimits(self, request: pb2.UpdateNodeLimitsRequest, context: Context) -> pb2.UpdateNodeLimitsResponse:
        violations, wanted = Violations(), request.node_limits
        changed = changed_fields(wanted, request.update_mask, NODE_FIELDS, "node_limits", violations, optional=("overrides",))
        changes: dict[str, Any] = dict(quotas_of(wanted, changed & set(QUOTA_FIELDS), "node_limits", violations))
        if "per_address" in changed:
            given = {field.name for field, _ in wanted.per_address.ListFields()}
            changes["per_address"] = quotas_of(wanted.per_address, given, "node_limits.per_address", violations)
        if "overrides" in changed:
            changes["overrides"] = overrides_of(wanted.overrides, "node_limits.overrides", violations)
        violations.check()
        note(before=_named(node_message(self._limits.get_node()), changed))
        after = node_message(await self._limits.change_node(changes, wanted.etag))
        note(after=_named(after, changed))
        return pb2.UpdateNodeLimitsResponse(node_limits=after)


def _named(message: pb2.Limit | pb2.NodeLimits, names: set[str]) -> dict[str, Any]:
    """Some fields, for the audit row."""
    found: dict[str, Any] = {}
    for name in sorted(names):
        value = getattr(message, name)
        if isinstance(value, int):
            found[name] = value
        elif name == "overrides":
            found[name] = [shown(item) for item in value]
        else:
            found[name] = shown(value)
    return found


def quotas_of(message: Message, names: Collection[str], field: str, violations: Violations) -> dict[str, int]:
    """Some quotas of a message, by the model's names.

    Args:
        message: a Limit, NodeLimits or AddressLimits.
        names: of its fields.
        field: the name of the message in the request.
        violations: gets the values that are out of range.
    """
    known, found = keys(RateLimits), {}
    for name in QUOTA_FIELDS:
        if name not in names:
            continue
        value, key = getattr(message, name), known[QUOTA_FIELDS[name]]
        if not key.takes(value):
            violations.add(f"{field}.{name}", f"must be {key.least} to {key.most}, not {value}")
        found[QUOTA_FIELDS[name]] = value
    return found


def overrides_of(messages: Sequence[pb2.LimitOverride], field: str, violations: Violations) -> tuple[LimitOverride, ...]:
    """The overrides of a request; their networks are not checked."""
    found = []
    for index, message in enumerate(messages):
        given = {item.name for item, _ in message.limits.ListFields()}
        quotas = quotas_of(message.limits, given, f"{field}[{index}].limits", violations)
        denied = message.access == pb2.NETWORK_ACCESS_DENY
        found.append(LimitOverride(network=message.network, access="deny" if denied else "allow", **quotas))
    return tuple(found)


def limit_message(limit: Limit) -> pb2.Limit:
    """The limits of a listener."""
    return pb2.Limit(listener=limit.listener, max_receive_size_bytes=limit.max_receive_size, **_values(limit.quotas))


def node_message(limits: NodeLimits) -> pb2.NodeLimits:
    """The quotas of the node, of addresses and of networks."""
    quotas = limits.quotas
    return pb2.NodeLimits(
        per_address=pb2.AddressLimits(**_values(quotas.per_address)),
        overrides=[_override(item) for item in quotas.overrides],
        protected_listener=quotas.protected_listener or "",
        etag=limits.etag,
        **_values(quotas),
    )


def _override(override: LimitOverride) -> pb2.LimitOverride:
    access = pb2.NETWORK_ACCESS_DENY if override.access == "deny" else pb2.NETWORK_ACCESS_ALLOW
    return pb2.LimitOverride(network=override.network, access=access, limits=pb2.AddressLimits(**_values(override)))


def _values(quotas: RateLimits | LimitOverride) -> dict[str, int]:
    """The quotas that are given, by the API's names."""
    return {name: value for name, own in QUOTA_FIELDS.items() if (value := getattr(quotas, own)) is not None}
