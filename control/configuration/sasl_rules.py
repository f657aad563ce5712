"""What SASL asks of the rest: Kafka's protocol, a file for each mechanism, files that can be read and are what they should be."""

from typing import Any, Final

from control.configuration.document import Document, Path
from control.configuration.files import exposure_warning, readable_fault
from control.configuration.units import counted
from control.configuration.values import Values, default_of, given, names_below
from proxy.config.model import ListenerConfig
from proxy.config.sasl import TokenConfig

__all__ = ["sasl_rules"]

_WITH_USERS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TOKENS: Final = "OAUTHBEARER"
_IN_CLEAR: Final = {"PLAIN": "passwords", _TOKENS: "tokens"}


def sasl_rules(document: Document, listeners: list[tuple[Path, Values]]) -> None:
    """Of each listener with SASL."""
    for path, listener in listeners:
        sasl = listener.get("sasl")
        if not isinstance(sasl, dict):
            continue
        if given(listener, ListenerConfig, "protocol", document, path) == "framed":
            document.add((*path, "sasl"), "needs protocol: kafka, whose frames SASL is spoken in")
        mechanisms = _mechanisms(document, (*path, "sasl"), sasl)
        _needed(document, (*path, "sasl"), sasl, mechanisms)
        if not listener.get("tls") and "tls" not in names_below(document, path):
            _in_clear(document, (*path, "sasl", "mechanisms"), mechanisms)
        _users(document, (*path, "sasl", "users"), sasl.get("users"))
        _token_rules(document, (*path, "sasl", "tokens"), sasl.get("tokens"))


def _mechanisms(document: Document, path: Path, sasl: Values) -> list[str]:
    """Those that a listener has; faults: none, or one twice."""
    found = [item for item in sasl.get("mechanisms") or [] if isinstance(item, str)]
    if "mechanisms" in sasl and not sasl["mechanisms"]:
        document.add((*path, "mechanisms"), "needs at least one", "")
    _unique(document, (*path, "mechanisms"), found)
    return found


def _unique(document: Document, path: Path, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            document.add((*path, index), "is named twice", name)


def _needed(document: Document, path: Path, sasl: Values, mechanisms: list[str]) -> None:
    """Each mechanism has what it is checked against, and nothing is there for none."""
    present = names_below(document, path)
    needs = {"users": [item for item in mechanisms if item in _WITH_USERS], "tokens": [item for item in mechanisms if item == _TOKENS]}
    for name, users in needs.items():
        is_there = bool(sasl.get(name)) or name in present
        if users and not is_there:
            document.add((*path, name), f"is required for {' and '.join(users)}")
        if mechanisms and is_there and not users:
            document.warn((*path, name), "has no effect: no mechanism is checked against it", "")


def _in_clear(document: Document, path: Path, mechanisms: list[str]) -> None:
    for name, what in _IN_CLEAR.items():
        if name in mechanisms:
            document.warn(path, f"{name} without tls: {what} pass where everybody on the way can read them", name)


def _users(document: Document, path: Path, file: object) -> None:
    if not isinstance(file, str) or not document.files:
        return
    reason = readable_fault(file)
    if reason is not None:
        document.add(path, reason)
        return
    from control.identity.users_file import UsersFileError, read_users  # here: it loads what hashes

    try:
        users = read_users(file)
    except UsersFileError as error:
        line, what = error.faults[0]
        more = f"; {counted(len(error.faults) - 1, 'other line')} as well" if len(error.faults) > 1 else ""
        document.add(path, f"is no file of users: line {line}: {what}{more}")
        return
    except OSError as error:
        document.add(path, f"cannot be read: {error.strerror or error}")
        return
    if not users.users:
        document.warn(path, "has no users; framegate users add makes one")
    exposed = exposure_warning(file)
    if exposed is not None:
        document.warn(path, exposed)


def _token_rules(document: Document, path: Path, tokens: object) -> None:
    if not isinstance(tokens, dict):
        return
    for name in ("issuer", "audience", "principal_claim", "scope_claim"):
        if tokens.get(name) == "":
            document.add((*path, name), "must not be empty")
    scopes = tokens.get("scopes")
    for index, scope in enumerate(scopes if isinstance(scopes, list) else ()):
        if isinstance(scope, str) and len(scope.split()) != 1:
            document.add((*path, "scopes", index), "is no scope: they have no spaces, and are not empty")
    algorithms = tokens.get("algorithms")
    if algorithms == []:
        document.add((*path, "algorithms"), "needs at least one", "")
    _unique(document, (*path, "algorithms"), [item for item in algorithms or [] if isinstance(item, str)])
    skew = tokens.get("clock_skew_ms")
    if isinstance(skew, int) and skew % 1000:
        document.add((*path, "clock_skew"), "must be whole seconds")
    _keys(document, (*path, "jwks"), tokens.get("jwks"), algorithms or default_of(TokenConfig, "algorithms"))


def _keys(document: Document, path: Path, file: object, algorithms: Any) -> None:
    if not isinstance(file, str) or not document.files:
        return
    reason = readable_fault(file)
    if reason is not None:
        document.add(path, reason)
        return
    from control.identity.jwks import JwksError, read_jwks  # here: it loads OpenSSL

    try:
        keys = read_jwks(file)
    except JwksError as error:
        document.add(path, f"is no file of keys: {'; '.join(error.faults)}")
        return
    except OSError as error:
        document.add(path, f"cannot be read: {error.strerror or error}")
        return
    if not any(set(algorithms) & set(key.algorithms) for key in keys):
        document.warn(path, f"has no key for {', '.join(map(str, algorithms))}: no token is good")
