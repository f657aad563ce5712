"""KafkaRuleService. A rule has the same fields in the message as in the model, all of them lists of texts."""

import dataclasses
from typing import Any, Final

from framegate.control.errors import InvalidArgumentError, Violation
from framegate.control.service.interceptor import Context, note
from framegate.control.service.validate import Violations, changed_fields, check_required, required
from framegate.control.steering.kafka_rules import RulesAboutKafka, etag_of
from framegate.control.v1 import kafka_rule_service_pb2 as pb2
from framegate.control.v1.kafka_rule_service_pb2_grpc import KafkaRuleServiceServicer
from framegate.proxy.config.model import KafkaRule
from framegate.proxy.config.model import KafkaRules as Rules

__all__ = ["KafkaRules"]

_FIELDS: Final = tuple(field.name for field in dataclasses.fields(KafkaRule))
_CHANGEABLE: Final = ("report_only", "rules")
_MAX_ENTRIES: Final = 1_000
_MAX_TEXT: Final = 256


class KafkaRules(KafkaRuleServiceServicer):
    """Shows and changes rules about Kafka."""

    def __init__(self, rules: RulesAboutKafka) -> None:
        self._rules = rules

    async def GetKafkaRules(self, request: pb2.GetKafkaRulesRequest, context: Context) -> pb2.GetKafkaRulesResponse:
        check_required(request.listener, "listener")
        return pb2.GetKafkaRulesResponse(kafka_rules=_message(request.listener, self._rules.get(request.listener)))

    async def UpdateKafkaRules(self, request: pb2.UpdateKafkaRulesRequest, context: Context) -> pb2.UpdateKafkaRulesResponse:
        """Change the rules of a listener in every processor or in none."""
        violations, wanted = Violations(), request.kafka_rules
        listener = required(wanted.listener, "kafka_rules.listener", violations)
        changed = changed_fields(wanted, request.update_mask, _CHANGEABLE, "kafka_rules", violations, optional=_CHANGEABLE)
        changes: dict[str, Any] = {"report_only": wanted.report_only} if "report_only" in changed else {}
        if "rules" in changed:
            changes["rules"] = tuple(_rule(rule, f"kafka_rules.rules[{index}]", violations) for index, rule in enumerate(wanted.rules))
        violations.check()
        note(before=_row(self._rules.get(listener), changed))
        try:
            after = await self._rules.change(listener, changes, wanted.etag, validate_only=request.validate_only)
        except InvalidArgumentError as error:
            raise InvalidArgumentError([Violation(f"kafka_rules.{item.field}", item.description) for item in error.violations]) from error
        if not request.validate_only:
            note(after=_row(after, changed))
        return pb2.UpdateKafkaRulesResponse(kafka_rules=_message(listener, after))


def _rule(message: pb2.KafkaRule, field: str, violations: Violations) -> KafkaRule:
    values = {name: tuple(getattr(message, name)) for name in _FIELDS}
    for name, texts in values.items():
        if len(texts) > _MAX_ENTRIES:
            violations.add(f"{field}.{name}", f"must have at most {_MAX_ENTRIES} entries, not {len(texts)}")
        for index, text in enumerate(texts):
            if not 1 <= len(text) <= _MAX_TEXT:
                violations.add(f"{field}.{name}[{index}]", f"must have 1 to {_MAX_TEXT} characters, not {len(text)}")
    return KafkaRule(**values)


def _message(listener: str, rules: Rules) -> pb2.KafkaRules:
    found = [pb2.KafkaRule(**dataclasses.asdict(rule)) for rule in rules.rules]
    return pb2.KafkaRules(listener=listener, report_only=rules.report_only, rules=found, etag=etag_of(rules))


def _row(rules: Rules, names: set[str]) -> dict[str, Any]:
    """Some fields, for the audit row; of a rule those that restrict something."""
    short = [{name: value for name, value in dataclasses.asdict(rule).items() if value} for rule in rules.rules]
    return {name: value for name, value in (("report_only", rules.report_only), ("rules", short)) if name in names}
