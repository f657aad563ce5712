"""What ``listeners[].principal`` and ``allowed_principals`` ask: rules and patterns that can be read, and somebody to use them on."""

from control.configuration.document import Document, Path
from control.configuration.values import Values
from proxy.auth.admission import Admission
from proxy.auth.mapping_rules import MappingRules, RuleError
from proxy.network.authenticator import ANONYMOUS

__all__ = ["principal_rules"]


def principal_rules(document: Document, path: Path, listener: Values) -> None:
    """Of one listener."""
    principal = listener.get("principal")
    if isinstance(principal, dict):
        _rules(document, (*path, "principal", "rules"), principal.get("rules"))
        tls = listener.get("tls")
        if principal and (tls is None or (isinstance(tls, dict) and tls.get("client_auth") in (None, "none"))):
            document.warn((*path, "principal"), "has no effect: no client is asked for a certificate (tls.client_auth)", "")
    allowed = listener.get("allowed_principals")
    if allowed and listener.get("tls") is None and listener.get("sasl") is None and ANONYMOUS not in allowed:
        document.warn((*path, "allowed_principals"), f"refuses everybody: without tls and sasl each client is {ANONYMOUS}", "")
    for index, entry in enumerate(allowed if isinstance(allowed, list) else ()):
        place = (*path, "allowed_principals", index)
        if entry == "":
            document.add(place, "is empty: nobody has no name; without a certificate it is ANONYMOUS", '""')
        elif isinstance(entry, str):
            _try(document, place, entry, Admission)


def _rules(document: Document, path: Path, rules: object) -> None:
    if rules == []:
        document.add(path, "needs at least one: without any no name is mapped, and each client with a certificate is refused", "[]")
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        if isinstance(rule, str):
            _try(document, (*path, index), rule, MappingRules)
            if not rule.strip(" \t,"):
                document.add((*path, index), "is empty")


def _try(document: Document, path: Path, text: str, reader: type[Admission] | type[MappingRules]) -> None:
    try:
        if reader is Admission:
            Admission([text])
        else:
            MappingRules(text)
    except RuleError as error:
        document.add(path, f"is no rule: {error}, at character {error.position + 1}")
