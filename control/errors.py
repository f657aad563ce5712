"""What the control plane refuses, and why.

    ControlError                  base: ``reason`` (UPPER_SNAKE, stable, unique here) and ``metadata`` (strings for ErrorInfo.metadata)
    ├── NotFoundError             the named listener, channel, upstream, tap rule or user does not exist
    ├── AlreadyExistsError        something has the name that a new one is to have
    ├── InvalidArgumentError      a value is outside its range; ``violations`` names every field that is wrong
    ├── MalformedRequestError     the bytes of a request are no message of its type
    ├── FailedPreconditionError   the value is good but the state does not allow it (a pool below the largest frame, draining)
    ├── AbortedError              a processor refused a change, or lived and was silent: no processor has it
    ├── EtagError                 what is to be changed is not what the caller saw any more
    └── UnavailableError          who would have to answer is not there, or busy; the reason says what is known

``framegate.control.service`` maps each to one gRPC code, the command line to one exit code.
"""

import dataclasses
from collections.abc import Sequence

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "ControlError",
    "EtagError",
    "FailedPreconditionError",
    "InvalidArgumentError",
    "MalformedRequestError",
    "NotFoundError",
    "StartError",
    "UnavailableError",
    "Violation",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that is wrong. Attributes: ``field`` (its path), ``description`` (a sentence without the field's name)."""

    field: str
    description: str


class ControlError(Exception):
    """Base of everything the control plane refuses. ``metadata`` are the dynamic values of the message, for machines."""

    def __init__(self, message: str, *, reason: str, **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = metadata


class NotFoundError(ControlError):
    """Nothing has that name. ``kind`` is ``listener``, ``channel``, ``upstream``, ``tap rule``, ``user``; ``name`` is what was asked for."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}", reason=f"{_upper(kind)}_NOT_FOUND", kind=kind, name=name)
        self.kind = kind
        self.name = name


class AlreadyExistsError(ControlError):
    """Something has that name. ``field`` is where the request has it; the others as of ``NotFoundError``."""

    def __init__(self, kind: str, name: str, field: str) -> None:
        super().__init__(f"there is a {kind} {name!r} already", reason=f"{_upper(kind)}_EXISTS", kind=kind, name=name, field=field)
        self.kind = kind
        self.name = name


class EtagError(ControlError):
    """The request names the state that it is meant for, and that has changed. Read again, and decide again."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} is not as it was: somebody has changed it", reason="ETAG_MISMATCH", kind=kind, name=name)
        self.kind = kind
        self.name = name


class InvalidArgumentError(ControlError):
    """One or more fields of a request are wrong; all are named."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        text = "; ".join(f"{item.field}: {item.description}" for item in violations)
        super().__init__(text, reason="INVALID_ARGUMENT")
        self.violations = tuple(violations)


class MalformedRequestError(ControlError):
    """The bytes of a request are no message of its method's type."""

    def __init__(self) -> None:
        super().__init__("the request's bytes are no message of the method's type", reason="REQUEST_MALFORMED")


class FailedPreconditionError(ControlError):
    """The request is well-formed, but the state of the proxy does not allow it."""


class AbortedError(ControlError):
    """A change was refused by a processor, or not answered by one that lives; it was taken back everywhere."""


class UnavailableError(ControlError):
    """Who would have to answer is not there, or busy: mostly processors; a file that somebody else is changing. Asking again may help."""


class StartError(ControlError):
    """The proxy cannot start: an address is taken, another instance holds the tap, the processors fail. The process exits with code 1."""


def _upper(kind: str) -> str:
    return kind.upper().replace(" ", "_")
