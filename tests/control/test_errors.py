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


def test_not_found_says_what_and_which() -> None:
    error = NotFoundError("listener", "kafka")
    assert str(error) == "there is no listener 'kafka'"
    assert error.reason == "LISTENER_NOT_FOUND"
    assert error.metadata == {"kind": "listener", "name": "kafka"}


def test_a_name_that_is_taken_says_where_it_stands_and_an_old_etag_what_it_was_of() -> None:
    taken = AlreadyExistsError("tap rule", "all", "tap_rule.name")
    assert (str(taken), taken.reason) == ("there is a tap rule 'all' already", "TAP_RULE_EXISTS")
    assert taken.metadata == {"kind": "tap rule", "name": "all", "field": "tap_rule.name"}
    old = EtagError("tap rule", "all")
    assert (str(old), old.reason) == ("tap rule 'all' is not as it was: somebody has changed it", "ETAG_MISMATCH")
    assert NotFoundError("tap rule", "all").reason == "TAP_RULE_NOT_FOUND"


def test_an_invalid_argument_names_every_violation() -> None:
    error = InvalidArgumentError([Violation("size", "must be positive"), Violation("reason", "is too long")])
    assert str(error) == "size: must be positive; reason: is too long"
    assert len(error.violations) == 2


def test_all_are_control_errors_with_a_reason_and_facts() -> None:
    for kind in (AbortedError, UnavailableError, StartError):
        error = kind("text", reason="WHY", slot="1")
        assert isinstance(error, ControlError)
        assert (error.message, error.reason, error.metadata) == ("text", "WHY", {"slot": "1"})
