"""The gRPC code and the details of each error of the control plane.

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
    DeniedError,
    EtagError,
    ExhaustedError,
    FailedPreconditionError,
    InvalidArgumentError,
    MalformedRequestError,
    NotFoundError,
    StartError,
    UnavailableError,
    UnknownMethodError,
    Violation,
)
from framegate.control.service.quoting import cut

_DOMAIN: Final = "framegate"
_RETRY_DELAY_MS: Final = 1_000  # in RetryInfo, for clients that may try again
_TEXT: Final = 512
"""Characters of each text. A status is sent in trailers, of which clients accept 8 KiB, and may quote the request in several places."""
_VIOLATIONS: Final = 2_048  # Characters of all violations together

CODES: Final[dict[type[ControlError], grpc.StatusCode]] = {
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    EtagError: grpc.StatusCode.ABORTED,
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    MalformedRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    ExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeniedError: grpc.StatusCode.PERMISSION_DENIED,
    UnknownMethodError: grpc.StatusCode.UNIMPLEMENTED,
    AbortedError: grpc.StatusCode.ABORTED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    StartError: grpc.StatusCode.INTERNAL,
}


def code_of(error: ControlError) -> grpc.StatusCode:
    """The code of an error: that of its class, or of the nearest base class in the table, or INTERNAL."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return grpc.StatusCode.INTERNAL


def _details(error: ControlError) -> list[Message]:
    match error:
        case InvalidArgumentError():
            return [error_details_pb2.BadRequest(field_violations=_violations(error.violations))]
        case NotFoundError() | AlreadyExistsError() | EtagError():
            name, description = cut(error.name, _TEXT), cut(error.message, _TEXT)
            return [error_details_pb2.ResourceInfo(resource_type=f"{_DOMAIN}/{error.kind}", resource_name=name, description=description)]
        case FailedPreconditionError():
            violation = error_details_pb2.PreconditionFailure.Violation(type=error.reason, subject=_DOMAIN, description=cut(error.message, _TEXT))
            return [error_details_pb2.PreconditionFailure(violations=[violation])]
        case AbortedError() | UnavailableError() | ExhaustedError() if error.reason != "REQUEST_TOO_LARGE":
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(_RETRY_DELAY_MS)
            return [error_details_pb2.RetryInfo(retry_delay=delay)]
        case _:
            return []


def _violations(items: Sequence[Violation]) -> list[error_details_pb2.BadRequest.FieldViolation]:
    """The first violations, as many as fit, then one with the number of others."""
    shown, left = list[error_details_pb2.BadRequest.FieldViolation](), _VIOLATIONS
    for item in items:
        field, description = cut(item.field, _TEXT), cut(item.description, _TEXT)
        left -= len(field) + len(description)
        if shown and left < 0:
            shown.append(error_details_pb2.BadRequest.FieldViolation(field="…", description=f"{len(items) - len(shown)} more"))
            break
        shown.append(error_details_pb2.BadRequest.FieldViolation(field=field, description=description))
    return shown


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def status_of(error: Exception) -> status_pb2.Status:
    """The Status of a failed call. An exception that is not a ``ControlError`` is our bug: INTERNAL, and its text is only in the log."""
    if not isinstance(error, ControlError):
        code, message, details = grpc.StatusCode.INTERNAL, "a fault of framegate itself; its log says more", list[Message]()
        info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=_DOMAIN, metadata={"type": type(error).__name__})
    else:
        code, message, details = code_of(error), cut(error.message, _TEXT), _details(error)
        metadata = {name: cut(value, _TEXT) for name, value in error.metadata.items()}
        info = error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata=metadata)
    return status_pb2.Status(code=code.value[0], message=message, details=[_packed(detail) for detail in (info, *details)])
