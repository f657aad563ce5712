"""One table: which error of the control plane is which gRPC code, and what details it carries.

Every failure of a call is a google.rpc.Status with an ErrorInfo: the reason in UPPER_SNAKE_CASE, the domain ``framegate``, every dynamic value of
the message as metadata. Each kind of detail occurs at most once (AIP-193).
"""

from collections.abc import Sequence
from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from framegate.control.errors import (
    AbortedError,
    AlreadyExistsError,
    ControlError,
    EtagError,
    FailedPreconditionError,
    InvalidArgumentError,
    MalformedRequestError,
    NotFoundError,
    StartError,
    UnavailableError,
    Violation,
)
from framegate.control.service.quoting import cut

__all__ = ["CODES", "DOMAIN", "INTERNAL_REASON", "code_of", "status_of"]

DOMAIN: Final = "framegate"
INTERNAL_REASON: Final = "INTERNAL"
RETRY_DELAY_MS: Final = 1_000
"""What RetryInfo tells a client that may ask again."""
_TEXT: Final = 512
"""Characters of each text. A status travels in trailers, of which clients take 8 KiB; what a caller sent may be quoted in several places."""
_VIOLATIONS: Final = 2_048
"""Of all violations together."""

CODES: Final[dict[type[ControlError], grpc.StatusCode]] = {
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    EtagError: grpc.StatusCode.ABORTED,
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    MalformedRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    AbortedError: grpc.StatusCode.ABORTED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    StartError: grpc.StatusCode.INTERNAL,
}


def code_of(error: ControlError) -> grpc.StatusCode:
    """The code of an error; a class that the table does not name has that of its nearest base, else INTERNAL."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return grpc.StatusCode.INTERNAL


def _details(error: ControlError) -> list[Message]:
    """What the error says besides its ErrorInfo."""
    match error:
        case InvalidArgumentError():
            return [error_details_pb2.BadRequest(field_violations=_violations(error.violations))]
        case NotFoundError() | AlreadyExistsError() | EtagError():
            name, description = cut(error.name, _TEXT), cut(error.message, _TEXT)
            return [error_details_pb2.ResourceInfo(resource_type=f"{DOMAIN}/{error.kind}", resource_name=name, description=description)]
        case FailedPreconditionError():
            violation = error_details_pb2.PreconditionFailure.Violation(type=error.reason, subject=DOMAIN, description=cut(error.message, _TEXT))
            return [error_details_pb2.PreconditionFailure(violations=[violation])]
        case AbortedError() | UnavailableError():
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(RETRY_DELAY_MS)
            return [error_details_pb2.RetryInfo(retry_delay=delay)]
        case _:
            return []


def _violations(items: Sequence[Violation]) -> list[error_details_pb2.BadRequest.FieldViolation]:
    """The first of them, as many as there is room for, then one that says how many there are besides."""
    told, left = list[error_details_pb2.BadRequest.FieldViolation](), _VIOLATIONS
    for item in items:
        field, description = cut(item.field, _TEXT), cut(item.description, _TEXT)
        left -= len(field) + len(description)
        if told and left < 0:
            told.append(error_details_pb2.BadRequest.FieldViolation(field="…", description=f"{len(items) - len(told)} more"))
            break
        told.append(error_details_pb2.BadRequest.FieldViolation(field=field, description=description))
    return told


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def status_of(error: Exception) -> status_pb2.Status:
    """The Status of a failed call. An exception that is not a ``ControlError`` is our bug: INTERNAL, its text stays in the log."""
    if not isinstance(error, ControlError):
        number, message, details = _number(grpc.StatusCode.INTERNAL), "a fault of framegate itself; its log says more", list[Message]()
        info = error_details_pb2.ErrorInfo(reason=INTERNAL_REASON, domain=DOMAIN, metadata={"type": type(error).__name__})
    else:
        number, message, details = _number(code_of(error)), cut(error.message, _TEXT), _details(error)
        metadata = {name: cut(value, _TEXT) for name, value in error.metadata.items()}
        info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    return status_pb2.Status(code=number, message=message, details=[_packed(detail) for detail in (info, *details)])


def _number(code: grpc.StatusCode) -> int:
    """The number of a code on the wire; grpc's enum holds it with its name."""
    return code.value[0]
