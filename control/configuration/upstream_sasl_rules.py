"""What SASL towards an upstream asks of the rest: Kafka's framing and protocol, one way to say who we are, secrets that can be read."""

import typing
from typing import Any, Final

from control.configuration.document import Document, Path
from control.configuration.files import exposure_warning, readable_fault
from control.configuration.values import Values, default_of, names_below
from proxy.auth.mapping_rules import MappingRules, RuleError
from proxy.config.model import ListenerConfig, UpstreamConfig
from proxy.config.sasl import Mechanism

__all__ = ["upstream_sasl_rules"]

_TOKENS: Final = "OAUTHBEARER"
_RULE: Final = "RULE:"
_OF_ALL: Final = ("mechanism", "user", "password_file", "token_file")
_IN_CLEAR: Final = {"PLAIN": "the password passes", _TOKENS: "the token passes"}


def upstream_sasl_rules(document: Document, listeners: list[tuple[Path, Values]], upstreams: list[tuple[Path, Values]]) -> None:
    """Of each upstream with SASL, and of the listeners before it."""
    protected = set()
    for path, upstream in upstreams:
        sasl = upstream.get("sasl")
        if not isinstance(sasl, dict):
            continue
        protected.add(str(upstream.get("name")))
        framing = upstream.get("framing", default_of(UpstreamConfig, "framing"))
        if framing != "int32":
            document.add((*path, "sasl"), f"needs framing: int32, which SASL is spoken in; the upstream speaks {framing}", "")
        clear = not upstream.get("tls") and "tls" not in names_below(document, path)
        _sasl(document, (*path, "sasl"), sasl, clear=clear)
    for path, listener in listeners:
        if str(listener.get("upstream")) in protected and listener.get("protocol", default_of(ListenerConfig, "protocol")) != "kafka":
            reason = f"must be kafka: SASL of the upstream {listener['upstream']} is Kafka's"
            document.add((*path, "protocol"), reason, listener.get("protocol", default_of(ListenerConfig, "protocol")))


def _sasl(document: Document, path: Path, sasl: Values, *, clear: bool) -> None:
    of_all = sorted(set(_OF_ALL) & names_below(document, path))
    identities = sasl.get("identities") or []
    if not identities:
        if "mechanism" not in of_all:
            document.add((*path, "mechanism"), "is required where there are no identities", "")
            return
        _identity(document, path, sasl, clear=clear)
        return
    for name in of_all:
        if sasl.get(name) not in ("", None):
            document.add((*path, name), "and identities exclude each other: a last one without principals is everybody's")
    everybody = False
    for index, identity in enumerate(identities):
        if everybody:
            document.add((*path, "identities", index), "is never taken: the one before it has no principals, so it is everybody's", "")
        _identity(document, (*path, "identities", index), identity, clear=clear)
        _principals(document, (*path, "identities", index, "principals"), identity.get("principals") or [])
        everybody = not identity.get("principals") and not _has_items(document, (*path, "identities", index, "principals"))


def _has_items(document: Document, path: Path) -> bool:
    return bool(names_below(document, path))


def _identity(document: Document, path: Path, identity: Values, *, clear: bool) -> None:
    """Exactly what the mechanism needs."""
    mechanism = identity.get("mechanism")
    if mechanism not in typing.get_args(Mechanism):
        return
    needed, other = ("token_file", "password_file") if mechanism == _TOKENS else ("password_file", "token_file")
    present = names_below(document, path)
    if identity.get(needed) is None and needed not in present:
        document.add((*path, needed), f"is required for {mechanism}", "")
    if identity.get(other) is not None:
        document.add((*path, other), f"is not for {mechanism}, which needs {needed}")
    if mechanism != _TOKENS and not identity.get("user") and not ("user" in present and "user" not in identity):
        document.add((*path, "user"), f"is required for {mechanism}", "")
    if clear and mechanism in _IN_CLEAR:
        document.warn((*path, "mechanism"), f"{mechanism} without tls: {_IN_CLEAR[mechanism]} where everybody on the way can read it")
    _secret(document, (*path, needed), identity.get(needed))


def _secret(document: Document, path: Path, file: object) -> None:
    if not isinstance(file, str) or not document.files:
        return
    reason = readable_fault(file)
    if reason is not None:
        document.add(path, reason)
        return
    from control.identity.secrets import SecretError, Secrets  # here: what the rooms of identity load is not for everybody

    try:
        Secrets({"": file}).read("")
    except SecretError as error:
        document.add(path, f"cannot be used: {str(error).removeprefix(file).strip()}")
        return
    exposed = exposure_warning(file)
    if exposed is not None:
        document.warn(path, exposed)


def _principals(document: Document, path: Path, principals: list[Any]) -> None:
    for index, principal in enumerate(principals):
        if not isinstance(principal, str):
            continue
        if principal in principals[:index]:
            document.add((*path, index), "is named twice")
        if not principal.startswith(_RULE):
            continue
        try:
            count = len(MappingRules(principal))
        except RuleError as error:
            document.add((*path, index), f"is no rule: {error}")
            continue
        if count != 1:
            document.add((*path, index), "must be one rule; others are entries of their own")
