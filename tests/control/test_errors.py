from framegate.control.errors import (
    AbortedError,
    AlreadyExistsError,
    ControlError,
    EtagError,
    InvalidArgumentError,
    NotFoundError,
    StartError,
    UnavailableError,
    Violation,
)


def test_errors_about_a_named_object_have_its_kind_and_name() -> None:
    for error, text, reason, field in (
        (NotFoundError("tap rule", "all"), "there is no tap rule 'all'", "TAP_RULE_NOT_FOUND", {}),
        (AlreadyExistsError("tap rule", "all", "f"), "there is a tap rule 'all' already", "TAP_RULE_EXISTS", {"field": "f"}),
        (EtagError("tap rule", "all"), "tap rule 'all' was changed since it was read", "ETAG_MISMATCH", {}),
    ):
        assert (str(error), error.reason, error.metadata) == (text, reason, {"kind": "tap rule", "name": "all", **field})


def test_an_invalid_argument_names_every_violation() -> None:
    error = InvalidArgumentError([Violation("size", "must be positive"), Violation("reason", "is too long")])
    assert (str(error), len(error.violations)) == ("size: must be positive; reason: is too long", 2)


def test_all_are_control_errors_with_a_reason_and_metadata() -> None:
    for kind in (AbortedError, UnavailableError, StartError):
        error = kind("text", reason="WHY", slot="1")
        assert isinstance(error, ControlError)
        assert (error.message, error.reason, error.metadata) == ("text", "WHY", {"slot": "1"})
