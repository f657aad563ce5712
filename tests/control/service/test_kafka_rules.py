"""KafkaRuleService over a real socket."""

import grpc
from google.protobuf.field_mask_pb2 import FieldMask

from framegate.control.v1 import kafka_rule_service_pb2 as pb2
from framegate.proxy.config.model import KafkaRule
from tests.control.service.served import refused, served
from tests.fakes.serving import Serving

RULE = pb2.KafkaRule(principals=["a*"], deny=["DeleteTopics"])


def update(*paths: str, rules: tuple[pb2.KafkaRule, ...] = (), listener: str = "kafka", **values: object) -> pb2.UpdateKafkaRulesRequest:
    wanted = pb2.KafkaRules(listener=listener, rules=rules, **values)  # type: ignore[arg-type]
    return pb2.UpdateKafkaRulesRequest(kafka_rules=wanted, update_mask=FieldMask(paths=paths))


@served()
async def test_rules_are_got_updated_and_audited(at: Serving) -> None:
    before = (await at.api.GetKafkaRules(pb2.GetKafkaRulesRequest(listener="kafka"))).kafka_rules
    assert (before.report_only, list(before.rules)) == (False, [])
    checked = update(rules=(RULE,), etag=before.etag)
    checked.validate_only = True
    assert list((await at.api.UpdateKafkaRules(checked)).kafka_rules.rules) == [RULE]
    after = (await at.api.UpdateKafkaRules(update(rules=(RULE,), report_only=True, etag=before.etag))).kafka_rules
    assert (after.report_only, list(after.rules)) == (True, [RULE])
    assert at.plane.config.listeners[0].kafka.rules == (KafkaRule(principals=("a*",), deny=("DeleteTopics",)),)
    enforced = (await at.api.UpdateKafkaRules(update("report_only"))).kafka_rules
    assert (enforced.report_only, list(enforced.rules)) == (False, [RULE])
    assert not (await at.api.UpdateKafkaRules(update("rules"))).kafka_rules.rules
    row = {"principals": ["a*"], "deny": ["DeleteTopics"]}
    assert [(audit["before"], audit.get("after")) for audit in at.plane.audits] == [
        (None, None),
        ({"report_only": False, "rules": []}, {"report_only": True, "rules": [row]}),
        ({"report_only": True}, {"report_only": False}),
        ({"rules": [row]}, {"rules": []}),
    ]


@served()
async def test_bad_updates_are_refused_by_field(at: Serving) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    cases = [
        (update(), invalid, ["kafka_rules"]),
        (update("rules", listener=""), invalid, ["kafka_rules.listener"]),
        (update("colour"), invalid, ["update_mask"]),
        (update(rules=(pb2.KafkaRule(deny=["Fech"]),)), invalid, ["kafka_rules.rules[0].deny[0]"]),
        (update(rules=(pb2.KafkaRule(topics=["x" * 257]),)), invalid, ["kafka_rules.rules[0].topics[0]"]),
        (update(rules=(pb2.KafkaRule(topics=["x"] * 1001),)), invalid, ["kafka_rules.rules[0].topics"]),
        (update("rules", listener="plain"), grpc.StatusCode.FAILED_PRECONDITION, []),
        (update("rules", listener="nobody"), grpc.StatusCode.NOT_FOUND, []),
        (update("rules", etag="old"), grpc.StatusCode.ABORTED, []),
    ]
    found = [(await refused(at.api.UpdateKafkaRules(request))) for request, _, _ in cases]
    assert [(code, fields) for code, _, fields in found] == [(code, fields) for _, code, fields in cases]
