from control.errors import AbortedError, ControlError, InvalidArgumentError, NotFoundError, StartError, UnavailableError, Violation


def test_not_found_says_what_and_which() -> None:
    error = NotFoundError("listener", "kafka")
    assert str(error) == "there is no listener 'kafka'"
    assert error.reason == "LISTENER_NOT_FOUND"
    assert error.facts == {"kind": "listener", "name": "kafka"}


def test_an_invalid_argument_names_every_violation() -> None:
    error = InvalidArgumentError([Violation("size", "must be positive"), Violation("reason", "is too long")])
    assert str(error) == "size: must be positive; reason: is too long"
    assert len(error.violations) == 2


def test_all_are_control_errors_with_a_reason_and_facts() -> None:
    for kind in (AbortedError, UnavailableError, StartError):
        error = kind("text", reason="WHY", slot="1")
        assert isinstance(error, ControlError)
        assert (error.message, error.reason, error.facts) == ("text", "WHY", {"slot": "1"})
