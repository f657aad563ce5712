"""TapService."""

import time
from typing import Any

import grpc

from framegate.control.errors import InvalidArgumentError, NotFoundError
from framegate.control.events import Row
from framegate.control.service import paging
from framegate.control.service.interceptor import note
from framegate.control.service.tap_rule import FIELDS, changed_paths, new_values, renamed, rule_message, rule_row
from framegate.control.service.validate import Violations, required
from framegate.control.status import TAP_RULE, TapRuleStatus
from framegate.control.steering import taps as steering
from framegate.control.v1 import tap_service_pb2 as pb2
from framegate.control.v1.tap_service_pb2_grpc import TapServiceServicer
from framegate.proxy.config.model import TapRule

__all__ = ["TapRules"]

Context = grpc.aio.ServicerContext[Any, Any]


class TapRules(TapServiceServicer):
    """Shows and changes which frames the tap records, and how."""

    def __init__(self, taps: steering.Taps) -> None:
        self._taps = taps

    async def ListTapRules(self, request: pb2.ListTapRulesRequest, context: Context) -> pb2.ListTapRulesResponse:
        """One page of rules, in order."""
        statuses = self._taps.rules()
        chosen, token = paging.page([(status.rule.name, status) for status in statuses], request.page_size, request.page_token)
        return pb2.ListTapRulesResponse(tap_rules=map(rule_message, chosen), next_page_token=token)

    async def GetTapRule(self, request: pb2.GetTapRuleRequest, context: Context) -> pb2.GetTapRuleResponse:
        """One rule."""
        violations = Violations()
        required(request.name, "name", violations)
        violations.check()
        for status in self._taps.rules():
            if status.rule.name == request.name:
                return pb2.GetTapRuleResponse(tap_rule=rule_message(status))
        raise NotFoundError(TAP_RULE, request.name)

    async def CreateTapRule(self, request: pb2.CreateTapRuleRequest, context: Context) -> pb2.CreateTapRuleResponse:
        """A new rule in every processor or in none."""
        violations = Violations()
        name = required(request.tap_rule.name, "tap_rule.name", violations)
        values = new_values(request.tap_rule, {*FIELDS}, time.time_ns(), violations)
        violations.check()
        note(before=self._row(name))
        try:
            status = await self._taps.create(TapRule(name=name, **values), request.before, validate_only=request.validate_only)
        except InvalidArgumentError as error:
            raise renamed(error) from error
        self._note_after(name, validate_only=request.validate_only)
        return pb2.CreateTapRuleResponse(tap_rule=rule_message(status))

    async def UpdateTapRule(self, request: pb2.UpdateTapRuleRequest, context: Context) -> pb2.UpdateTapRuleResponse:
        """Change a rule in every processor or in none."""
        violations = Violations()
        rule = request.tap_rule
        name = required(rule.name, "tap_rule.name", violations)
        paths = changed_paths(rule, request.update_mask, violations)
        if not paths and not request.HasField("before"):
            violations.add("tap_rule", "sets nothing that is to be changed, and the rule is not to be moved")
        values = new_values(rule, paths, time.time_ns(), violations)
        violations.check()
        before = request.before if request.HasField("before") else None
        note(before=self._row(name))
        try:
            status = await self._taps.update(name, values, before, rule.etag, validate_only=request.validate_only)
        except InvalidArgumentError as error:
            raise renamed(error) from error
        self._note_after(name, validate_only=request.validate_only)
        return pb2.UpdateTapRuleResponse(tap_rule=rule_message(status))

    async def DeleteTapRule(self, request: pb2.DeleteTapRuleRequest, context: Context) -> pb2.DeleteTapRuleResponse:
        """Take a rule away in every processor or in none."""
        violations = Violations()
        name = required(request.name, "name", violations)
        violations.check()
        note(before=self._row(name))
        await self._taps.delete(name, request.etag, validate_only=request.validate_only)
        self._note_after(name, validate_only=request.validate_only)
        return pb2.DeleteTapRuleResponse()

    def _row(self, name: str) -> Row:
        """A rule, if there is one, and the order of all, for the audit row."""
        statuses = self._taps.rules()
        return {"rule": _found(statuses, name), "order": [status.rule.name for status in statuses]}

    def _note_after(self, name: str, *, validate_only: bool) -> None:
        if not validate_only:
            note(after=self._row(name))


def _found(statuses: list[TapRuleStatus], name: str) -> Row | None:
    return next((rule_row(status.rule) for status in statuses if status.rule.name == name), None)
