"""Requests that the rules about Kafka of one listener refused: counted, and collected for a row."""

from typing import Final

from framegate.proxy.cells import LISTENER_BLOCK, REFUSED_APIS
from framegate.proxy.errors import shown
from framegate.proxy.kafka.schema import api
from framegate.proxy.relay.counters import Counts
from framegate.proxy.relay.kafka_rules import KINDS, KafkaRulesInForce, Refusal
from framegate.proxy.server.rows import KafkaRefusedRow


class Refusals:
    """Counts refusals of one listener."""

    def __init__(self, listener: str, rules: KafkaRulesInForce, counts: Counts) -> None:
        self._listener: Final = listener
        self._rules: Final = rules
        self._counts: Final = counts
        self._first: Refusal | None = None
        self._count = 0

    def note(self, refusal: Refusal) -> None:
        name = _api_name(refusal.key)
        kind = "report_only" if self._rules.report_only else KINDS[refusal.kind]
        self._counts.count(LISTENER_BLOCK.at("framegate.kafka.request.refused", name if name in REFUSED_APIS else "other", kind))
        self._first = self._first or refusal
        self._count += 1

    @property
    def waiting(self) -> bool:
        return self._first is not None

    def take(self) -> KafkaRefusedRow | None:
        """The row about those since the last call; None: there were none."""
        first, count = self._first, self._count
        self._first, self._count = None, 0
        if first is None:
            return None
        return KafkaRefusedRow(
            listener=self._listener,
            count=count,
            report_only=self._rules.report_only,
            principal=first.principal,
            client_id=shown(first.client_id),
            api=_api_name(first.key),
            kind=KINDS[first.kind],
            name=shown(first.name),
        )


def _api_name(key: int) -> str:
    known = api(key)
    return f"api-{key}" if known is None else known.name
