"""The rules of listeners about Kafka, changed while traffic flows, in two phases (``control.fleet.two_phases``)."""

import asyncio
import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from framegate.control.errors import FailedPreconditionError, InvalidArgumentError, Violation
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.steering.listeners import find_listener, with_listener
from framegate.control.steering.transactions import Changed, Part, Transactions, replaced
from framegate.proxy.config.model import KafkaRules, ProxyConfig


class RulesAboutKafka:
    """Shows and changes them."""

    def __init__(self, supervisor: Supervisor, transactions: Transactions) -> None:
        self._supervisor = supervisor
        self._transactions = transactions

    def get(self, listener: str) -> KafkaRules:
        """The rules in force of a listener. Raises NotFoundError, or FailedPreconditionError (NO_KAFKA_RULES): it has no section ``kafka``."""
        return _rules_of(self._supervisor.desired.config, listener)

    async def change(self, listener: str, changes: Mapping[str, Any], etag: str = "", *, validate_only: bool = False) -> Changed[KafkaRules]:
        """Change ``report_only``, ``rules`` or both, for the next requests. Raises the errors of ``get``; InvalidArgumentError: rules that are not
        valid, with fields as in ``rules[0].deny[1]``; others as ``Transactions.update``.
        """
        validation = await asyncio.to_thread(importlib.import_module, "framegate.control.configuration.kafka_rules")  # with the reader of YAML

        def edit(before: KafkaRules) -> KafkaRules:
            after = replaced(before, changes)
            faults = validation.kafka_rule_faults(after)
            if faults:
                raise InvalidArgumentError([Violation(field, reason) for field, reason in faults])
            return after

        part = Part(
            "rules about Kafka",
            listener,
            lambda config: _rules_of(config, listener),
            lambda config, rules: with_listener(config, dataclasses.replace(find_listener(config, listener), kafka=rules)),
        )
        return await self._transactions.update(self._supervisor, part, edit, etag, validate_only=validate_only)


def _rules_of(config: ProxyConfig, listener: str) -> KafkaRules:
    rules = find_listener(config, listener).kafka
    if rules is None:
        text = f"the listener {listener} has no section `kafka`: add it, perhaps without rules, and restart"
        raise FailedPreconditionError(text, reason="NO_KAFKA_RULES", listener=listener)
    return rules
