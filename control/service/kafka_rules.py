"""KafkaRuleService."""

from typing import Final

from framegate.control.service.interceptor import Context
from framegate.control.service.update import Resource, fill, update
from framegate.control.service.validate import check_required
from framegate.control.steering.limits import RulesAboutKafka
from framegate.control.steering.transactions import etag_of
from framegate.control.v1 import kafka_rule_service_pb2 as pb2
from framegate.control.v1.kafka_rule_service_pb2_grpc import KafkaRuleServiceServicer
from framegate.proxy.config.model import KafkaRules as Rules

RULES: Final = Resource(pb2.KafkaRules, Rules, "kafka_rules", key="listener")


class KafkaRules(KafkaRuleServiceServicer):
    """Shows and changes rules about Kafka."""

    def __init__(self, rules: RulesAboutKafka) -> None:
        self._rules = rules

    async def GetKafkaRules(self, request: pb2.GetKafkaRulesRequest, context: Context) -> pb2.GetKafkaRulesResponse:
        check_required(request.listener, "listener")
        return pb2.GetKafkaRulesResponse(kafka_rules=_message(request.listener, self._rules.get(request.listener)))

    async def UpdateKafkaRules(self, request: pb2.UpdateKafkaRulesRequest, context: Context) -> pb2.UpdateKafkaRulesResponse:
        after = await update(request, RULES, self._rules.change)
        return pb2.UpdateKafkaRulesResponse(kafka_rules=_message(request.kafka_rules.listener, after))


def _message(listener: str, rules: Rules) -> pb2.KafkaRules:
    return fill(pb2.KafkaRules(listener=listener, etag=etag_of(rules)), rules)
