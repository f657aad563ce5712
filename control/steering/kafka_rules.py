"""The rules of listeners about Kafka, changed while traffic flows, in two phases (``control.fleet.two_phases``)."""

import asyncio
import dataclasses
import hashlib
import importlib
import json
from collections.abc import Mapping
from typing import Any

from framegate.control.errors import EtagError, FailedPreconditionError, InvalidArgumentError, Violation
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.steering.listeners import find_listener
from framegate.control.steering.transactions import Transaction, Transactions
from framegate.proxy.config.model import KafkaRules, ProxyConfig

__all__ = ["RulesAboutKafka", "etag_of"]


def etag_of(rules: KafkaRules) -> str:
    """Identifies rules."""
    text = json.dumps(dataclasses.asdict(rules), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class RulesAboutKafka:
    """Shows and changes them."""

    def __init__(self, supervisor: Supervisor, transactions: Transactions) -> None:
        self._supervisor = supervisor
        self._transactions = transactions

    def get(self, listener: str) -> KafkaRules:
        """The rules in force of a listener. Raises NotFoundError, or FailedPreconditionError (NO_KAFKA_RULES): it has no section ``kafka``."""
        rules = find_listener(self._supervisor.desired.config, listener).kafka
        if rules is None:
            text = f"the listener {listener} has no section `kafka`: add it, perhaps without rules, and restart"
            raise FailedPreconditionError(text, reason="NO_KAFKA_RULES", listener=listener)
        return rules

    async def change(self, listener: str, changes: Mapping[str, Any], etag: str = "", *, validate_only: bool = False) -> KafkaRules:
        """Change ``report_only``, ``rules`` or both, for the next requests.

        Args:
            changes: new values by the name of ``KafkaRules``' field.
            etag: that of the rules that the caller has seen; empty: change any.
            validate_only: only check, and return the result.

        Raises:
            NotFoundError, FailedPreconditionError: as of ``get``. InvalidArgumentError: rules that are not valid; the violations' fields are as in
            ``rules[0].deny[1]``. EtagError: the rules have changed. AbortedError: a processor refused; none has them. UnavailableError: the change is
            decided, but not confirmed everywhere.
        """
        validation = await asyncio.to_thread(importlib.import_module, "framegate.control.configuration.kafka_rules")  # with the reader of YAML

        def changed() -> KafkaRules:
            before = self.get(listener)
            if etag and etag != etag_of(before):
                raise EtagError("rules about Kafka", listener)
            after = dataclasses.replace(before, **changes)
            faults = validation.kafka_rule_faults(after)
            if faults:
                raise InvalidArgumentError([Violation(field, reason) for field, reason in faults])
            return after

        if validate_only:
            return changed()

        def edit(config: ProxyConfig) -> ProxyConfig:
            after = changed()
            listeners = (dataclasses.replace(item, kafka=after) if item.name == listener else item for item in config.listeners)
            return dataclasses.replace(config, listeners=tuple(listeners))

        async def make(transaction: Transaction) -> KafkaRules:
            made = await self._supervisor.change_config(edit, decided=transaction.decide)
            after = find_listener(made.after, listener).kafka
            assert after is not None, "it was changed"
            return after

        return await self._transactions.change(f"rules about Kafka of {listener}", make)
