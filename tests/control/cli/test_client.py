"""What errors of calls become."""

import pytest
from click.testing import CliRunner

from control.cli import main
from control.cli.client import CLIENT_KEY, EXIT_CODES, metadata, select, tell_missing
from control.service import interceptor
from tests.fakes.cli import served


def test_nobody_at_the_address_exits_with_5_and_a_hint() -> None:
    result = CliRunner().invoke(main, ["status", "--address", "unix:/nowhere/admin.sock"])
    assert (result.exit_code, result.stdout) == (5, "")
    assert "unix:/nowhere/admin.sock cannot be reached" in result.stderr


def test_the_exit_codes_are_the_documented_ones() -> None:
    assert {code.name: number for code, number in EXIT_CODES.items()} == {
        "INVALID_ARGUMENT": 2,
        "NOT_FOUND": 3,
        "ABORTED": 4,
        "UNAVAILABLE": 5,
        "DEADLINE_EXCEEDED": 5,
    }


def test_every_wrong_field_has_a_line() -> None:
    with served() as cli:
        result = cli("channels", "mute", "0-1-7", "--reason", "x" * 300)
        assert (result.exit_code, result.stderr) == (2, "framegate: reason: must have at most 256 characters, not 300\n")


def test_a_fault_of_the_proxy_exits_with_1() -> None:
    with served() as cli:
        cli.plane.failure = ZeroDivisionError("secret")
        result = cli("channels", "unmute", "--listener", "kafka")
        assert (result.exit_code, result.stderr) == (1, "framegate: a fault of framegate itself; its log says more (INTERNAL)\n")


def test_service_and_command_line_mean_the_same_metadata() -> None:
    assert CLIENT_KEY == interceptor.CLIENT_KEY
    assert metadata()[0][1].isascii()


def test_a_selector_names_channels_or_a_listener() -> None:
    assert list(select(("0-1-2",), None).channels.ids) == ["0-1-2"]
    assert select((), "kafka").listener == "kafka"


def test_nothing_missing_is_nothing_to_tell() -> None:
    tell_missing([])
    with pytest.raises(SystemExit) as caught:
        tell_missing(["0-1-2"])
    assert caught.value.code == 3
