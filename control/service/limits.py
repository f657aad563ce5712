"""LimitService."""

from typing import Any, Final

import grpc

from framegate.control.service import paging
from framegate.control.service.interceptor import note
from framegate.control.service.quotas import NODE_FIELDS, QUOTA_FIELDS, limit_message, node_message, overrides_of, quotas_of
from framegate.control.service.quoting import shown
from framegate.control.service.validate import Violations, changed_fields, required
from framegate.control.steering import limits as steering
from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceServicer
from framegate.proxy.config.model import MAX_RECEIVE_SIZE

__all__ = ["Limits"]

Context = grpc.aio.ServicerContext[Any, Any]
_SIZE: Final = "max_receive_size_bytes"


class Limits(LimitServiceServicer):
    """Shows and changes what clients may send."""

    def __init__(self, limits: steering.Limits) -> None:
        self._limits = limits

    async def ListLimits(self, request: pb2.ListLimitsRequest, context: Context) -> pb2.ListLimitsResponse:
        """One page of limits, by listener name."""
        limits = sorted(self._limits.get(), key=lambda limit: limit.listener)
        chosen, token = paging.page([(limit.listener, limit) for limit in limits], request.page_size, request.page_token)
        return pb2.ListLimitsResponse(limits=[limit_message(limit) for limit in chosen], next_page_token=token)

    async def GetLimit(self, request: pb2.GetLimitRequest, context: Context) -> pb2.GetLimitResponse:
        """The limits of one listener."""
        violations = Violations()
        required(request.listener, "listener", violations)
        violations.check()
        (limit,) = self._limits.get(request.listener)
        return pb2.GetLimitResponse(limit=limit_message(limit))

    async def UpdateLimit(self, request: pb2.UpdateLimitRequest, context: Context) -> pb2.UpdateLimitResponse:
        """Change maxReceiveSize and quotas in every processor or in none."""
        violations, limit = Violations(), request.limit
        required(limit.listener, "limit.listener", violations)
        changed = changed_fields(limit, request.update_mask, {_SIZE, *QUOTA_FIELDS}, "limit", violations)
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
        """The quotas of the node, of addresses and of networks."""
        return pb2.GetNodeLimitsResponse(node_limits=node_message(self._limits.get_node()))

    async def UpdateNodeLimits(self, request: pb2.UpdateNodeLimitsRequest, context: Context) -> pb2.UpdateNodeLimitsResponse:
        """Change them in every processor or in none."""
        violations, wanted = Violations(), request.node_limits
        changed = _changed(request, violations)
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


def _changed(request: pb2.UpdateNodeLimitsRequest, violations: Violations) -> set[str]:
    """The fields that an update is about: those of the mask, or those that are set; all overrides may be taken away by naming them only."""
    paths, wanted = list(request.update_mask.paths), request.node_limits
    present = {field.name for field, _ in wanted.ListFields()} & set(NODE_FIELDS)
    for path in paths:
        if path != "*" and path not in NODE_FIELDS:
            violations.add("update_mask", f"has the unknown path {path!r}; known are {', '.join(NODE_FIELDS)} and *")
    if not paths:
        if not present:
            violations.add("node_limits", f"sets none of {', '.join(NODE_FIELDS)}")
        return present
    changed = set(NODE_FIELDS) if "*" in paths else set(paths) & set(NODE_FIELDS)
    for name in sorted(changed - present - {"overrides"}):
        violations.add(f"node_limits.{name}", "is required, for the update mask names it")
    return changed


def _named(message: pb2.Limit | pb2.NodeLimits, names: set[str]) -> dict[str, Any]:
    """Some fields, as the audit shows them."""
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
