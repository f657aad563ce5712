"""One table of codes, and details that machines can read."""

import grpc
import pytest
from google.rpc import error_details_pb2

from framegate.control import errors
from framegate.control.service.status import CODES, code_of, status_of


def test_every_error_class_has_a_code() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ControlError)}
    assert classes - {errors.ControlError} == set(CODES)


@pytest.mark.parametrize(
    ("error", "detail", "code"),
    [
        (errors.NotFoundError("listener", "x"), error_details_pb2.ResourceInfo, grpc.StatusCode.NOT_FOUND),
        (errors.AlreadyExistsError("tap rule", "x", "name"), error_details_pb2.ResourceInfo, grpc.StatusCode.ALREADY_EXISTS),
        (errors.EtagError("tap rule", "x"), error_details_pb2.ResourceInfo, grpc.StatusCode.ABORTED),
        (errors.InvalidArgumentError([errors.Violation("a", "is bad")]), error_details_pb2.BadRequest, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.FailedPreconditionError("no", reason="WHY"), error_details_pb2.PreconditionFailure, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.AbortedError("no", reason="WHY", slot="1"), error_details_pb2.RetryInfo, grpc.StatusCode.ABORTED),
        (errors.UnavailableError("no", reason="WHY"), error_details_pb2.RetryInfo, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_each_error_carries_its_reason_and_its_own_detail(error: errors.ControlError, detail: type, code: grpc.StatusCode) -> None:
    status = status_of(error)
    info, own = error_details_pb2.ErrorInfo(), detail()
    assert [status.details[0].Unpack(info), status.details[1].Unpack(own), len(status.details)] == [True, True, 2]
    assert (status.code, status.message) == (code.value[0], error.message)
    assert (info.reason, info.domain, dict(info.metadata)) == (error.reason, "framegate", error.metadata)


def test_an_error_of_an_unknown_class_below_a_known_one_has_its_code() -> None:
    class Special(errors.AbortedError):
        pass

    assert code_of(Special("no", reason="WHY")) is grpc.StatusCode.ABORTED
    assert code_of(errors.ControlError("no", reason="WHY")) is grpc.StatusCode.INTERNAL


def test_a_bug_of_ours_does_not_show_its_text() -> None:
    status = status_of(ZeroDivisionError("secret"))
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in str(status)


@pytest.mark.parametrize(
    "error",
    [
        errors.NotFoundError("listener", "\u20ac" * 900_000),
        errors.InvalidArgumentError([errors.Violation("a" * 900_000, "b" * 900_000)]),
        errors.InvalidArgumentError([errors.Violation(f"paths[{number}]", "is bad") for number in range(10_000)]),
        errors.FailedPreconditionError("c" * 900_000, reason="WHY", size="d" * 900_000),
    ],
)
def test_a_status_fits_into_the_trailers_of_a_call_whatever_it_quotes(error: errors.ControlError) -> None:
    status = status_of(error)
    assert len(status.SerializeToString()) * 4 / 3 + len(status.message.encode()) * 3 < 16 * 1024
    assert status.message.endswith(f"({len(error.message)} characters)")
    if isinstance(error, errors.InvalidArgumentError) and len(error.violations) > 1:
        own = error_details_pb2.BadRequest()
        assert status.details[1].Unpack(own)
        told = len(own.field_violations) - 1
        assert own.field_violations[-1].description == f"{10_000 - told} more"
        assert [item.field for item in own.field_violations[:told]] == [f"paths[{number}]" for number in range(told)]
