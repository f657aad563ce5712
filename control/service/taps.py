"""TapService. A field that is not set in a message has its default, as in a configuration file; so has an empty list."""

import time
from typing import Any, Final

from framegate.control.errors import NotFoundError
from framegate.control.events import Row
from framegate.control.service.convert import timestamp
from framegate.control.service.interceptor import Context
from framegate.control.service.update import Resource, audited, fill, plain, update
from framegate.control.service.validate import Violations, check_required, page, required
from framegate.control.status import TAP_RULE, TapRuleStatus
from framegate.control.steering import taps as steering
from framegate.control.steering.taps import Rules
from framegate.control.steering.transactions import etag_of
from framegate.control.v1 import tap_service_pb2 as pb2
from framegate.control.v1.tap_service_pb2_grpc import TapServiceServicer
from framegate.proxy.config.model import TapRule

_MAX_NS: Final = 2**63 - 1


def _expires_ns(message: pb2.TapRule, path: str, violations: Violations) -> int:
    now_ns = time.time_ns()
    match message.WhichOneof("expiration"):
        case "expire_time":
            expires_ns = _ns(message.expire_time, 0, "tap_rule.expire_time", violations)
            if 0 < expires_ns <= now_ns:
                violations.add("tap_rule.expire_time", "must be later than now: it has passed")
            return expires_ns
        case "ttl":
            return _ns(message.ttl, now_ns, "tap_rule.ttl", violations)
        case _:
            return 0


def _ns(moment: Any, base_ns: int, field: str, violations: Violations) -> int:
    """A base plus a Timestamp or a Duration."""
    length_ns = int(moment.seconds) * 10**9 + int(moment.nanos)
    if not 0 <= moment.nanos < 10**9 or length_ns < 10**6 or base_ns + length_ns > _MAX_NS:
        violations.add(field, "must be at least 1 ms, and end before 2262")
        return 0
    return base_ns + length_ns


RULE: Final = Resource(pb2.TapRule, TapRule, "tap_rule", key="name", readers=dict.fromkeys(("expire_time", "ttl"), ("expires_ns", _expires_ns)))
"""``ttl`` is another way to write ``expire_time``."""


class TapRules(TapServiceServicer):
    """Shows and changes tap rules."""

    def __init__(self, taps: steering.Taps) -> None:
        self._taps = taps

    async def ListTapRules(self, request: pb2.ListTapRulesRequest, context: Context) -> pb2.ListTapRulesResponse:
        statuses = self._taps.rules()
        chosen, token = page([(status.rule.name, status) for status in statuses], request.page_size, request.page_token)
        return pb2.ListTapRulesResponse(tap_rules=map(rule_message, chosen), next_page_token=token)

    async def GetTapRule(self, request: pb2.GetTapRuleRequest, context: Context) -> pb2.GetTapRuleResponse:
        check_required(request.name, "name")
        for status in self._taps.rules():
            if status.rule.name == request.name:
                return pb2.GetTapRuleResponse(tap_rule=rule_message(status))
        raise NotFoundError(TAP_RULE, request.name)

    async def CreateTapRule(self, request: pb2.CreateTapRuleRequest, context: Context) -> pb2.CreateTapRuleResponse:
        violations, name = Violations(), request.tap_rule.name
        required(name, "tap_rule.name", violations)
        values = RULE.changes(request.tap_rule, RULE.fields, violations)
        violations.check()
        call = self._taps.create(TapRule(name=name, **values), request.before, validate_only=request.validate_only)
        rules = await audited(call, lambda found: _row(found, name), RULE, validate_only=request.validate_only)
        return pb2.CreateTapRuleResponse(tap_rule=self._message(rules, name))

    async def UpdateTapRule(self, request: pb2.UpdateTapRuleRequest, context: Context) -> pb2.UpdateTapRuleResponse:
        before = request.before if request.HasField("before") else None
        name = request.tap_rule.name
        rules = await update(
            request,
            RULE,
            lambda name, changes, **how: self._taps.update(name, changes, before, **how),
            row=lambda found: _row(found, name),
            empty=before is not None,
        )
        return pb2.UpdateTapRuleResponse(tap_rule=self._message(rules, name))

    async def DeleteTapRule(self, request: pb2.DeleteTapRuleRequest, context: Context) -> pb2.DeleteTapRuleResponse:
        check_required(request.name, "name")
        call = self._taps.delete(request.name, request.etag, validate_only=request.validate_only)
        await audited(call, lambda found: _row(found, request.name), validate_only=request.validate_only)
        return pb2.DeleteTapRuleResponse()

    def _message(self, rules: Rules, name: str) -> pb2.TapRule:
        return rule_message(next(self._taps.status(rule) for rule in rules if rule.name == name))


def _row(rules: Rules, name: str) -> Row:
    """For the audit row: the rule, None if there is none, and the order of all rules."""
    found = next((plain(rule) for rule in rules if rule.name == name), None)
    return {"rule": found, "order": [rule.name for rule in rules]}


def rule_message(status: TapRuleStatus) -> pb2.TapRule:
    """A rule with all fields that have a value."""
    message = fill(pb2.TapRule(etag=etag_of(status.rule)), status.rule)
    for stop in status.stops:
        cause = pb2.TapRuleStop.Cause.Value(f"CAUSE_{stop.cause.upper()}")
        message.stops.add(processor_slot=stop.slot, cause=cause, percent=stop.percent, limit_percent=stop.limit, stop_time=timestamp(stop.since_ns))
    expired, stopped = pb2.TapRule.STATE_EXPIRED, pb2.TapRule.STATE_STOPPED
    active = pb2.TapRule.STATE_LOSING if status.losing else pb2.TapRule.STATE_ACTIVE
    message.state = expired if status.expired else stopped if status.stops else active
    return message
