"""TapService, and tap rules as messages of the API and back, by one table of fields.

A field of the model has the name of the message's field unless ``_MESSAGE_NAMES`` has another one. A field that is not set in a message has its
default, as in a configuration file; so has an empty list, because an empty list cannot be told from one that is not set.
"""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any, Final

from framegate.control.errors import InvalidArgumentError, NotFoundError, Violation
from framegate.control.events import Row
from framegate.control.service.convert import timestamp
from framegate.control.service.interceptor import Context, note
from framegate.control.service.validate import Violations, changed_fields, check_required, page, required
from framegate.control.status import TAP_RULE, TapRuleStatus
from framegate.control.steering import taps as steering
from framegate.control.v1 import tap_service_pb2 as pb2
from framegate.control.v1.tap_service_pb2_grpc import TapServiceServicer
from framegate.proxy.config.model import TapRule

__all__ = ["FIELDS", "MAX_ENTRIES", "TapRules", "new_values", "rule_message", "rule_row"]

MAX_ENTRIES: Final = 1_000
_MAX_TEXT: Final = 256
_MAX_NS: Final = 2**63 - 1
_DEFAULTS: Final = TapRule(name="")
_MESSAGE_NAMES: Final = {"min_size": "min_size_bytes", "max_size": "max_size_bytes", "expires_ns": "expire_time"}
FIELDS: Final = {_MESSAGE_NAMES.get(field.name, field.name): field.name for field in dataclasses.fields(TapRule) if field.name != "name"}
"""The fields of a rule that can be changed: the message's names, and the model's. ``ttl`` is another way to write ``expire_time``."""
_TTL: Final = "ttl"
_ENUMS: Final[dict[str, Any]] = {"directions": pb2.TapRule.Direction, "capture": pb2.TapRule.Capture, "on_full": pb2.TapRule.OnFull}
_PREFIXES: Final = {"directions": "DIRECTION_", "capture": "CAPTURE_", "on_full": "ON_FULL_"}
_LISTS: Final = frozenset(name for name, field in FIELDS.items() if isinstance(getattr(_DEFAULTS, field), tuple))


class TapRules(TapServiceServicer):
    """Shows and changes tap rules."""

    def __init__(self, taps: steering.Taps) -> None:
        self._taps = taps

    async def ListTapRules(self, request: pb2.ListTapRulesRequest, context: Context) -> pb2.ListTapRulesResponse:
        """One page of rules, in order."""
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
        """A new rule in every processor or in none."""
        violations = Violations()
        name = required(request.tap_rule.name, "tap_rule.name", violations)
        values = new_values(request.tap_rule, {*FIELDS}, time.time_ns(), violations)
        violations.check()
        note(before=self._row(name))
        try:
            status = await self._taps.create(TapRule(name=name, **values), request.before, validate_only=request.validate_only)
        except InvalidArgumentError as error:
            raise _renamed(error) from error
        self._note_after(name, validate_only=request.validate_only)
        return pb2.CreateTapRuleResponse(tap_rule=rule_message(status))

    async def UpdateTapRule(self, request: pb2.UpdateTapRuleRequest, context: Context) -> pb2.UpdateTapRuleResponse:
        """Change a rule in every processor or in none."""
        violations = Violations()
        rule = request.tap_rule
        name = required(rule.name, "tap_rule.name", violations)
        known = sorted((*FIELDS, _TTL))
        paths = changed_fields(rule, request.update_mask, known, "tap_rule", violations, optional=known, empty=True)
        if not paths and not request.HasField("before"):
            violations.add("tap_rule", "sets no field, and the rule is not moved either")
        values = new_values(rule, paths, time.time_ns(), violations)
        violations.check()
        before = request.before if request.HasField("before") else None
        note(before=self._row(name))
        try:
            status = await self._taps.update(name, values, before, rule.etag, validate_only=request.validate_only)
        except InvalidArgumentError as error:
            raise _renamed(error) from error
        self._note_after(name, validate_only=request.validate_only)
        return pb2.UpdateTapRuleResponse(tap_rule=rule_message(status))

    async def DeleteTapRule(self, request: pb2.DeleteTapRuleRequest, context: Context) -> pb2.DeleteTapRuleResponse:
        """Take a rule away in every processor or in none."""
        name = request.name
        check_required(name, "name")
        note(before=self._row(name))
        await self._taps.delete(name, request.etag, validate_only=request.validate_only)
        self._note_after(name, validate_only=request.validate_only)
        return pb2.DeleteTapRuleResponse()

    def _row(self, name: str) -> Row:
        """For the audit row: the rule, None if there is none, and the order of all rules."""
        rules = [status.rule for status in self._taps.rules()]
        return {"rule": next((rule_row(rule) for rule in rules if rule.name == name), None), "order": [rule.name for rule in rules]}

    def _note_after(self, name: str, *, validate_only: bool) -> None:
        if not validate_only:
            note(after=self._row(name))


def _numbers(name: str, words: Iterable[str]) -> list[int]:
    return [_ENUMS[name].Value(f"{_PREFIXES[name]}{word.upper()}") for word in words]


def rule_message(status: TapRuleStatus) -> pb2.TapRule:
    """A rule with all fields that have a value."""
    rule = status.rule
    message = pb2.TapRule(name=rule.name, etag=status.etag)
    for name, field in FIELDS.items():
        value = getattr(rule, field)
        if name == "expire_time":
            if value:
                message.expire_time.CopyFrom(timestamp(value))
        elif name in _LISTS:
            getattr(message, name).extend(_numbers(name, value) if name in _ENUMS else value)
        else:
            setattr(message, name, _numbers(name, [value])[0] if name in _ENUMS else value)
    for stop in status.stops:
        cause = pb2.TapRuleStop.Cause.Value(f"CAUSE_{stop.cause.upper()}")
        message.stops.add(processor_slot=stop.slot, cause=cause, percent=stop.percent, limit_percent=stop.limit, stop_time=timestamp(stop.since_ns))
    expired, stopped = pb2.TapRule.STATE_EXPIRED, pb2.TapRule.STATE_STOPPED
    active = pb2.TapRule.STATE_LOSING if status.losing else pb2.TapRule.STATE_ACTIVE
    message.state = expired if status.expired else stopped if status.stops else active
    return message


def rule_row(rule: TapRule) -> dict[str, Any]:
    """A rule for an audit row: its name, and the fields that differ from their defaults."""
    row = dataclasses.asdict(rule)
    return {name: value for name, value in row.items() if name == "name" or value != getattr(_DEFAULTS, name)}


def new_values(message: pb2.TapRule, paths: Iterable[str], now_ns: int, violations: Violations) -> dict[str, Any]:
    """The values of these fields, by the model's names: those of the message, or the defaults of fields that are not set.

    Args:
        paths: fields of the message.
        now_ns: wall clock, when ``ttl`` begins; a rule cannot end before it.
        violations: gets values that are never valid for their field. The rule as a whole is checked elsewhere.
    """
    values: dict[str, Any] = {}
    present = {described.name for described, _ in message.ListFields()}
    for path in sorted(paths):
        if path in ("expire_time", _TTL):
            values["expires_ns"] = _expires_ns(message, now_ns, violations)
        elif path not in present:
            values[FIELDS[path]] = getattr(_DEFAULTS, FIELDS[path])
        else:
            values[FIELDS[path]] = _value(message, path, violations)
    return values


def _value(message: pb2.TapRule, name: str, violations: Violations) -> Any:
    value = getattr(message, name)
    if name not in _LISTS:
        return _word(name, int(value), f"tap_rule.{name}", violations) if name in _ENUMS else value
    if len(value) > MAX_ENTRIES:
        violations.add(f"tap_rule.{name}", f"must have at most {MAX_ENTRIES} entries, not {len(value)}")
        return ()
    if name in _ENUMS:
        return tuple(dict.fromkeys(_word(name, number, f"tap_rule.{name}[{index}]", violations) for index, number in enumerate(value)))
    for index, text in enumerate(value):
        if not 1 <= len(text) <= _MAX_TEXT:
            violations.add(f"tap_rule.{name}[{index}]", f"must have 1 to {_MAX_TEXT} characters, not {len(text)}")
    return tuple(value)


def _word(name: str, number: int, field: str, violations: Violations) -> str:
    if number == 0 or number not in _ENUMS[name].values():
        violations.add(field, f"must be one of {', '.join(_ENUMS[name].keys()[1:])}")
        return ""
    return str(_ENUMS[name].Name(number)).removeprefix(_PREFIXES[name]).lower()


def _expires_ns(message: pb2.TapRule, now_ns: int, violations: Violations) -> int:
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


def _renamed(error: InvalidArgumentError) -> InvalidArgumentError:
    """The error with the message's names of fields in place of the model's."""
    names: dict[str, str] = {field: name for name, field in FIELDS.items()}

    def path(field: str) -> str:
        head = field.partition("[")[0]
        return f"tap_rule.{names.get(head, head)}{field[len(head) :]}"

    return InvalidArgumentError([Violation(path(item.field), item.description) for item in error.violations])
