"""SASL of listeners and towards upstreams: it needs Kafka's protocol and framing, and for each mechanism readable files of the right kind."""

import functools
from collections.abc import Callable
from typing import Final

from framegate.control.configuration.document import Document, Path, entries
from framegate.control.configuration.tls_rules import exposure_warning, readable_file
from framegate.control.configuration.units import counted
from framegate.proxy.auth.mapping_rules import MappingRules, RuleError
from framegate.proxy.config.model import ListenerConfig, UpstreamConfig
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig, UpstreamIdentity, UpstreamSasl

_TOKENS: Final = "OAUTHBEARER"
_IN_CLEAR: Final = {"PLAIN": "password", _TOKENS: "token"}
_RULE: Final = "RULE:"
Listeners = list[tuple[Path, ListenerConfig]]
Upstreams = list[tuple[Path, UpstreamConfig]]


def sasl_rules(document: Document, listeners: Listeners, upstreams: Upstreams) -> None:
    """Check each listener with SASL, each upstream with SASL, and the listeners in front of it."""
    protected = [item.name for _, item in upstreams if item.sasl is not None]
    for path, upstream in upstreams:
        if upstream.sasl is not None:
            if upstream.framing != "int32":
                document.add((*path, "sasl"), f"needs framing: int32, which SASL is spoken in; the upstream speaks {upstream.framing}", "")
            _upstream(document, (*path, "sasl"), upstream.sasl, clear=upstream.tls is None)
    for path, listener in listeners:
        framed = listener.protocol == "framed"
        if framed and listener.upstream in protected:
            document.add((*path, "protocol"), f"must be kafka: SASL of the upstream {listener.upstream} is Kafka's", "framed")
        if listener.sasl is not None:
            if framed:
                document.add((*path, "sasl"), "needs protocol: kafka, whose frames SASL is spoken in")
            _listener(document, (*path, "sasl"), listener.sasl, clear=listener.tls is None)


def _file(document: Document, path: Path, value: str | None, fault: Callable[[str], str | None], *, secret: bool = True) -> None:
    """Check that a file can be read and is good; warn if it has a secret in it and everybody may read it."""
    file = readable_file(document, path, value)
    if file is None:
        return
    try:
        reason = fault(file)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    document.add(path, reason)
    if reason is None and secret:
        document.warn(path, exposure_warning(file))


def _listener(document: Document, path: Path, sasl: ListenerSasl, *, clear: bool) -> None:
    if not sasl.mechanisms:
        document.add((*path, "mechanisms"), "needs at least one", "")
    document.unique((*path, "mechanisms"), sasl.mechanisms)
    tokens = [item for item in sasl.mechanisms if item == _TOKENS]
    for name, needing in (("users", [item for item in sasl.mechanisms if item != _TOKENS]), ("tokens", tokens)):
        if needing and getattr(sasl, name) is None:
            document.add((*path, name), f"is required for {' and '.join(needing)}")
        if sasl.mechanisms and getattr(sasl, name) is not None and not needing:
            document.warn((*path, name), "has no effect: no mechanism is checked against it", "")
    for name, what in _IN_CLEAR.items():
        if clear and name in sasl.mechanisms:
            document.warn((*path, "mechanisms"), f"{name} without tls: {what}s are sent unencrypted", name)
    _file(document, (*path, "users"), sasl.users, functools.partial(_users_fault, document, (*path, "users")))
    if sasl.tokens is not None:
        _tokens(document, (*path, "tokens"), sasl.tokens)


def _users_fault(document: Document, path: Path, file: str) -> str | None:
    from framegate.control.identity.users_file import UsersFileError, read_users  # not at the top: it loads the password hashes

    try:
        users = read_users(file)
    except UsersFileError as error:
        line, what = error.faults[0]
        more = f"; {counted(len(error.faults) - 1, 'other line')} as well" if len(error.faults) > 1 else ""
        return f"is no file of users: line {line}: {what}{more}"
    if not users.users:
        document.warn(path, "has no users; framegate users add makes one")
    return None


def _tokens(document: Document, path: Path, tokens: TokenConfig) -> None:
    for name in ("issuer", "audience", "principal_claim", "scope_claim"):
        if not getattr(tokens, name):
            document.add((*path, name), "must not be empty")
    for entry, scope in entries((*path, "scopes"), tokens.scopes):
        if len(scope.split()) != 1:
            document.add(entry, "is no scope: they have no spaces, and are not empty")
    if not tokens.algorithms:
        document.add((*path, "algorithms"), "needs at least one", "")
    document.unique((*path, "algorithms"), tokens.algorithms)
    if tokens.clock_skew_ms % 1000:
        document.add((*path, "clock_skew"), "must be whole seconds")
    _file(document, (*path, "jwks"), tokens.jwks, functools.partial(_keys_fault, document, (*path, "jwks"), tokens.algorithms), secret=False)


def _keys_fault(document: Document, path: Path, algorithms: tuple[str, ...], file: str) -> str | None:
    from framegate.control.identity.jwks import JwksError, read_jwks  # not at the top: it loads OpenSSL

    try:
        keys = read_jwks(file)
    except JwksError as error:
        return f"is no file of keys: {'; '.join(error.faults)}"
    if algorithms and not any(set(algorithms) & set(key.algorithms) for key in keys):
        document.warn(path, f"has no key for {', '.join(algorithms)}: no token is good")
    return None


def _upstream(document: Document, path: Path, sasl: UpstreamSasl, *, clear: bool) -> None:
    if not sasl.identities:
        _login(document, path, sasl, clear=clear)
        return
    for name in ("mechanism", "password_file", "token_file", "user"):
        if getattr(sasl, name):
            document.add((*path, name), "and identities exclude each other: a last one without principals is everybody's")
    everybody = False
    for entry, identity in entries((*path, "identities"), sasl.identities):
        if everybody:
            document.add(entry, "is never taken: the one before it has no principals, so it is everybody's", "")
        _login(document, entry, identity, clear=clear)
        _principals(document, (*entry, "principals"), identity.principals)
        everybody = identity.principals == ()


def _login(document: Document, path: Path, login: UpstreamSasl | UpstreamIdentity, *, clear: bool) -> None:
    mechanism = login.mechanism
    if not mechanism:
        document.add((*path, "mechanism"), "is required where there are no identities", "")
        return
    needed, other = ("token_file", "password_file") if mechanism == _TOKENS else ("password_file", "token_file")
    if getattr(login, needed) is None:
        document.add((*path, needed), f"is required for {mechanism}", "")
    if getattr(login, other) is not None:
        document.add((*path, other), f"is not for {mechanism}, which needs {needed}")
    if mechanism != _TOKENS and not login.user:
        document.add((*path, "user"), f"is required for {mechanism}", "")
    if clear and mechanism in _IN_CLEAR:
        document.warn((*path, "mechanism"), f"{mechanism} without tls: the {_IN_CLEAR[mechanism]} is sent unencrypted")
    _file(document, (*path, needed), getattr(login, needed), _secret_fault)


def _secret_fault(file: str) -> str | None:
    from framegate.control.identity.secrets import SecretError, Secrets  # not at the top: few configurations need it

    try:
        Secrets({"": file}).read("")
    except SecretError as error:
        return f"cannot be used: {str(error).removeprefix(file).strip()}"
    return None


def _principals(document: Document, path: Path, principals: tuple[str, ...]) -> None:
    document.unique(path, principals)
    for entry, principal in entries(path, principals):
        if not principal.startswith(_RULE):
            continue
        try:
            count = len(MappingRules(principal))
        except RuleError as error:
            document.add(entry, f"is no rule: {error}")
        else:
            document.add(entry, None if count == 1 else "must be one rule; others are entries of their own")
