"""The errors of the control plane.

    ControlError                  base: ``reason`` (UPPER_SNAKE, stable, unique here) and ``metadata`` (strings for ErrorInfo.metadata)
    ├── NotFoundError             the named listener, channel, upstream, tap rule or user does not exist
    ├── AlreadyExistsError        the name of a new object is taken
    ├── InvalidArgumentError      a value is outside its range; ``violations`` names every field that is wrong
    ├── MalformedRequestError     the bytes of a request cannot be parsed
    ├── ExhaustedError            a request is too large, or there are too many calls
    ├── DeniedError               the caller's role does not have the method
    ├── UnknownMethodError        the API has no such method
    ├── FailedPreconditionError   the request is valid, but the state does not allow it (a pool below the largest frame, draining)
    ├── AbortedError              a processor refused a change, or runs and did not answer: no processor has it
    ├── EtagError                 the object has changed since the caller read it
    ├── UnavailableError          a processor has ended or does not answer, or another process uses a file; asking again may help
    └── StartError                the proxy cannot start: an address is taken, another instance has the tap, processors fail; the exit code is 1

``framegate.control.service`` maps each to one gRPC code, the command line to one exit code.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that is wrong. Attributes: ``field`` (its path), ``description`` (a sentence without the field's name)."""

    field: str
    description: str


class ControlError(Exception):
    """Base of the errors of the control plane."""

    def __init__(self, message: str, *, reason: str, **metadata: str) -> None:
        super().__init__(message)
        self.changed: Any = None  # what was changed although the call failed (``control.steering.transactions.Changed``); None: nothing was
        self.message = message
        self.reason = reason
        self.metadata = metadata  # the values in the message, for programs


class NotFoundError(ControlError):
    """No object has the name. ``kind`` is ``listener``, ``channel``, ``upstream``, ``tap rule`` or ``user``."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}", reason=f"{_upper(kind)}_NOT_FOUND", kind=kind, name=name)
        self.kind = kind
        self.name = name


class AlreadyExistsError(ControlError):
    """An object has the name. ``field`` is the field of the request; the others as of ``NotFoundError``."""

    def __init__(self, kind: str, name: str, field: str) -> None:
        super().__init__(f"there is a {kind} {name!r} already", reason=f"{_upper(kind)}_EXISTS", kind=kind, name=name, field=field)
        self.kind = kind
        self.name = name


class EtagError(ControlError):
    """The object has changed since the caller read it."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} was changed since it was read", reason="ETAG_MISMATCH", kind=kind, name=name)
        self.kind = kind
        self.name = name


class InvalidArgumentError(ControlError):
    """One or more fields of a request are wrong; all are named."""

    def __init__(self, violations: Sequence[Violation], reason: str = "INVALID_ARGUMENT") -> None:
        text = "; ".join(f"{item.field}: {item.description}" for item in violations)
        super().__init__(text, reason=reason)
        self.violations = tuple(violations)


def check_fields(faults: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidArgumentError if there are faults, each a field and what is wrong with it."""
    if faults:
        raise InvalidArgumentError([Violation(*fault) for fault in faults])


class MalformedRequestError(ControlError):
    """The bytes of a request are not a message of its method's type."""

    def __init__(self) -> None:
        super().__init__("the request's bytes are no message of the method's type", reason="REQUEST_MALFORMED")


class ExhaustedError(ControlError):
    """A request is larger than the API takes, or too many calls are in progress."""


class DeniedError(ControlError):
    """The caller has too low a role, or none."""


class UnknownMethodError(ControlError):
    """The API has no method of the name."""

    def __init__(self, method: str) -> None:
        super().__init__(f"there is no method {method!r}", reason="METHOD_UNKNOWN", method=method)


class FailedPreconditionError(ControlError):
    """The request is well-formed, but the state of the proxy does not allow it."""


class AbortedError(ControlError):
    """A processor refused a change, or did not answer; the change was taken back everywhere."""


class UnavailableError(ControlError):
    """A processor has ended or does not answer, or another process is changing a file. Asking again may help."""


class StartError(ControlError):
    """The proxy cannot start."""


def _upper(kind: str) -> str:
    return kind.upper().replace(" ", "_")
