"""One table: which error of the control plane is which gRPC code, and what details it carries.

Every failure of a call is a google.rpc.Status with an ErrorInfo: the reason in UPPER_SNAKE_CASE, the domain ``framegate``, every dynamic value of
the message as metadata. Each kind of detail occurs at most once (AIP-193).
"""

from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from control.errors import (
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
)

__all__ = ["CODES", "DOMAIN", "INTERNAL_REASON", "code_of", "status_of"]

DOMAIN: Final = "framegate"
INTERNAL_REASON: Final = "INTERNAL"
RETRY_DELAY_MS: Final = 1_000
"""What RetryInfo tells a client that may ask again."""

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
            violations = [error_details_pb2.BadRequest.FieldViolation(field=item.field, description=item.description) for item in error.violations]
            return [error_details_pb2.BadRequest(field_violations=violations)]
        case NotFoundError() | AlreadyExistsError() | EtagError():
            return [error_details_pb2.ResourceInfo(resource_type=f"{DOMAIN}/{error.kind}", resource_name=error.name, description=error.message)]
        case FailedPreconditionError():
            violation = error_details_pb2.PreconditionFailure.Violation(type=error.reason, subject=DOMAIN, description=error.message)
            return [error_details_pb2.PreconditionFailure(violations=[violation])]
        case AbortedError() | UnavailableError():
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(RETRY_DELAY_MS)
            return [error_details_pb2.RetryInfo(retry_delay=delay)]
        case _:
            return []


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
        number, message, details = _number(code_of(error)), error.message, _details(error)
        info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    return status_pb2.Status(code=number, message=message, details=[_packed(detail) for detail in (info, *details)])


def _number(code: grpc.StatusCode) -> int:
    """The number of a code on the wire; grpc's enum holds it with its name."""
    return code.value[0]
