"""Quotas as the API says them, and as the model does: the same six, of a listener, of the node, of an address and of a network's addresses."""

from collections.abc import Collection, Sequence
from typing import Final

from google.protobuf.message import Message

from framegate.control.service.validate import Violations
from framegate.control.status import Limit, NodeLimits
from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.proxy.config.key import keys
from framegate.proxy.config.limits import LimitOverride, RateLimits

__all__ = ["NODE_FIELDS", "QUOTA_FIELDS", "limit_message", "node_message", "overrides_of", "quotas_of"]

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
"""Of a NodeLimits, what can be changed."""


def quotas_of(message: Message, names: Collection[str], field: str, violations: Violations) -> dict[str, int]:
    """Some quotas of a message, by the model's names.

    Args:
        message: a Limit, NodeLimits or AddressLimits.
        names: of its fields.
        field: what the request calls the message.
        violations: gets what is out of range.
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
    """The overrides of a request; whether their networks can be is not judged."""
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
    """Those that are given, by the API's names."""
    return {name: value for name, own in QUOTA_FIELDS.items() if (value := getattr(quotas, own)) is not None}
