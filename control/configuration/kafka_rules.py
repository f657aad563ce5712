"""The rules of listeners about Kafka: APIs that exist, rules that can match, frames that are whole where names are examined."""

import dataclasses
import difflib
import pathlib
from typing import Final

from framegate.control.configuration.document import WRONG, ConfigurationError, Document, Path, document_of, entries
from framegate.control.configuration.schema import build_section
from framegate.proxy.config.model import KafkaRule, KafkaRules, ListenerConfig
from framegate.proxy.kafka.schema import apis
from framegate.proxy.kafka.subjects import Patterns
from framegate.proxy.network.authenticator import ANONYMOUS

MOST_RULES: Final = 256
_ALWAYS: Final = ("SaslHandshake", "ApiVersions", "SaslAuthenticate")
_PATTERNS: Final = ("principals", "client_ids", "topics", "groups", "transactional_ids")
_FIXED: Final = "unknown_versions"


def kafka_rules(document: Document, path: Path, listener: ListenerConfig) -> None:
    """Check ``kafka`` of one listener."""
    if listener.kafka is None or listener.kafka is WRONG:
        return
    if listener.protocol == "framed":
        document.add((*path, "protocol"), "must be kafka: the rules in `kafka` look at requests of Kafka", "framed")
    if listener.handler is not None and listener.handler is not WRONG:
        document.add((*path, "handler"), "cannot be used with kafka: what a handler sends in place of a request would not be examined")
    if listener.forwarding.requests == "cut_through":
        document.add((*path, "forwarding", "requests"), "must be whole with kafka: all names in a request are examined before it is sent")
    _rules(document, (*path, "kafka"), listener.kafka)
    if listener.sasl is None and (listener.tls is None or (listener.tls is not WRONG and listener.tls.client_auth == "none")):
        for at, rule in entries((*path, "kafka", "rules"), listener.kafka.rules):
            if rule.principals and not Patterns(rule.principals).match(ANONYMOUS):
                document.warn((*at, "principals"), f"match nobody: without sasl or client certificates at the listener each client is {ANONYMOUS}")


def kafka_rule_faults(rules: KafkaRules) -> list[tuple[str, str]]:
    """The faults of rules that came over the API: each field's path, as in ``rules[0].deny[1]``, and a sentence without it."""
    document = document_of(dataclasses.asdict(rules))
    _built(document)
    return [(fault.key, fault.reason) for fault in document.faults]


def read_kafka_rules(text: str) -> tuple[KafkaRules, set[str]]:
    """The rules in a text of YAML, to be changed while framegate runs, and the keys of ``KafkaRules`` that it has. Raises ConfigurationError: with
    every fault.
    """
    from framegate.control.configuration.reading import parse_document  # here: only the command line reads YAML

    document = parse_document(text, pathlib.Path())
    if _FIXED in document.data:
        document.add((_FIXED,), "cannot be changed while framegate runs: set it in the configuration file, and restart")
    rules = _built(document)
    if document.faults:
        raise ConfigurationError(document.faults)
    return rules, set(document.data)


def _built(document: Document) -> KafkaRules:
    rules = build_section(document, KafkaRules, document.data, ())
    _rules(document, (), rules)
    return rules


def _rules(document: Document, path: Path, rules: KafkaRules) -> None:
    if len(rules.rules) > MOST_RULES:
        document.add((*path, "rules"), f"has {len(rules.rules)} entries, more than {MOST_RULES}: each is compared for each new connection")
    for at, rule in entries((*path, "rules"), rules.rules):
        _names(document, at, rule)
        last = at[-1] == len(rules.rules) - 1
        if not (rule.principals or rule.client_ids or last):
            document.warn(at, "matches every request, so the rules after it have no effect")
        if last and rule == KafkaRule(principals=rule.principals, client_ids=rule.client_ids):
            document.warn(at, "has no effect: what no rule matches is allowed as well")


def _names(document: Document, path: Path, rule: KafkaRule) -> None:
    """Check the names of APIs, and the patterns, of one rule."""
    names = [each.name for each in apis()]
    for key in ("allow", "deny"):
        for entry, name in entries((*path, key), getattr(rule, key)):
            if name not in names:
                like = difflib.get_close_matches(name, names, 1, 0)
                document.add(entry, f"is no API of Kafka that clients use; did you mean {like[0]}?")
            elif key == "deny" and name in _ALWAYS:
                document.add(entry, "cannot be denied: clients need it to connect")
    for key in _PATTERNS:
        for entry, pattern in entries((*path, key), getattr(rule, key)):
            if not pattern:
                document.add(entry, "is empty, and matches no name; an empty list does not restrict anything")
