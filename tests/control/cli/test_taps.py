"""``framegate taps``."""

import time
from collections.abc import Iterator

import pytest
from click.shell_completion import ShellComplete

from framegate.control.cli.commands import main
from framegate.control.status import TapStop
from framegate.proxy.config.model import TapRule
from tests.fakes.cases import each_of
from tests.fakes.cli import TAP, Cli, served

ALL = TapRule(name="all")


@pytest.fixture
def cli() -> Iterator[Cli]:
    with served(TAP) as cli:
        yield cli


def test_what_is_said_is_in_the_rule_and_what_is_not_is_as_in_a_file(cli: Cli) -> None:
    words = (
        "--listener", "kafka", "--listener", "plain", "--direction", "response", "--principal", "CN=x", "--network", "10.0.0.0/8",
        "--min-size", "1KiB", "--max-size", "1MiB", "--api", "Fetch", "--client", "billing-*", "--capture", "full", "--max-frame-bytes", "100",
        "--blank", "0-15", "--blank", "32-", "--hash", "16-31", "--sample-connections", "0.5", "--sample-frames", "0.01",
        "--expires", "2030-01-31T12:00:00Z", "--on-full", "mute", "--max-loss-percent", "5", "--max-cpu-percent", "2.5",
    )  # fmt: skip
    (shown,) = cli.json("taps", "add", "debug", *words, "--before", "all")
    rule = TapRule(
        name="debug",
        listeners=("kafka", "plain"),
        directions=("response",),
        principals=("CN=x",),
        networks=("10.0.0.0/8",),
        min_size=1024,
        max_size=1 << 20,
        apis=("Fetch",),
        clients=("billing-*",),
        max_frame_bytes=100,
        blank=("0-15", "32-"),
        hash=("16-31",),
        sample_connections=0.5,
        sample_frames=0.01,
        expires_ns=1_896_091_200 * 10**9,
        on_full="mute",
        max_loss_percent=5.0,
        max_cpu_percent=2.5,
    )
    assert cli.plane.tap_rules == [rule, ALL]
    assert (shown["name"], shown["min_size_bytes"], shown["expire_time"], shown["state"]) == ("debug", 1024, "2030-01-31T12:00:00Z", "STATE_ACTIVE")
    cli.json("taps", "add", "plain")
    assert cli.plane.tap_rules == [rule, ALL, TapRule(name="plain")]


def test_a_rule_that_would_have_ended_already_is_refused(cli: Cli) -> None:
    """By the clock of who is asked."""
    for words in (("add", "late"), ("set", "all")):
        result = cli("taps", *words, "--expires", "2001-01-01T00:00:00Z")
        assert (result.exit_code, "--expires" in result.stderr, "it has passed" in result.stderr) == (2, True, True), result.stderr
    assert cli.plane.tap_rules == [ALL]


def test_set_changes_only_what_is_named(cli: Cli) -> None:
    cli.plane.tap_rules = [TapRule(name="a", networks=("10.0.0.0/8",), sample_frames=0.5, expires_ns=5), ALL]
    cli.json("taps", "set", "a", "--sample-frames", "1", "--expires", "never")
    assert cli.plane.tap_rules == [TapRule(name="a", networks=("10.0.0.0/8",)), ALL]
    cli.json("taps", "set", "a", "--clear", "networks", "--min-size", "7")
    assert cli.plane.tap_rules == [TapRule(name="a", min_size=7), ALL]
    cli.json("taps", "set", "a", "--clear", "min_size", "--last")
    assert cli.plane.tap_rules == [ALL, TapRule(name="a")]
    cli.json("taps", "set", "a", "--before", "all", "--direction", "request")
    assert cli.plane.tap_rules == [TapRule(name="a", directions=("request",)), ALL]
    cli.json("taps", "set", "a", "--expires", "10m", "--clear", "directions")
    assert abs(cli.plane.tap_rules[0].expires_ns - time.time_ns() - 600 * 10**9) < 60 * 10**9
    cli.json("taps", "set", "a", "--clear", "expires")
    assert cli.plane.tap_rules == [TapRule(name="a"), ALL]


def test_remove_shows_what_is_left(cli: Cli) -> None:
    cli.plane.tap_rules = [TapRule(name="a"), ALL]
    assert [rule["name"] for rule in cli.json("taps", "remove", "a", "--dry-run")] == ["a", "all"]
    assert [rule["name"] for rule in cli.json("taps", "remove", "a")] == ["all"]
    result = cli("taps", "remove", "all")
    assert (result.exit_code, result.stdout, cli.plane.tap_rules) == (0, "", [])
    assert cli("taps", "list").stderr == "framegate: there are no tap rules\n"
    assert cli.json("taps", "list") == []


def test_the_table_says_in_a_line_what_a_rule_does_and_how_it_is(cli: Cli) -> None:
    cli.plane.tap_rules = [
        TapRule(
            name="much", listeners=("kafka",), directions=("request",), apis=("Produce", "Fetch"), min_size=1024, max_frame_bytes=64, blank=("0-15",),
            sample_connections=0.5, sample_frames=0.01, on_full="mute", expires_ns=1_896_091_200 * 10**9,
        ),
        TapRule(name="over", capture="lengths", expires_ns=10**9),
        TapRule(name="off", max_loss_percent=1.0),
        ALL,
    ]  # fmt: skip
    cli.plane.stop_rule("off", TapStop(slot=1, cause="loss", percent=7.5, limit=1.0, since_ns=2 * 10**9))
    head, *lines = cli("taps", "list").stdout.splitlines()
    assert head.split("  ")[0] == "NAME"
    much, over, off, all_ = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines)
    assert much == [
        "much", "kafka", "request", "api=Produce,Fetch size>=1 KiB", "full first 64 B blank 0-15", "0.5 of connections 0.01 of frames", "mute",
        "active; until 2030-01-31 12:00:00 UTC",
    ]  # fmt: skip
    assert over == ["over", "all", "request,response", "all", "lengths", "all", "drop", "expired; since 1970-01-01 00:00:01 UTC"]
    assert off[-1] == "stopped; off in processor 1 since 1970-01-01 00:00:02 UTC: loss 7.5 % is above 1 %"
    assert all_ == ["all", "all", "request,response", "all", "full", "all", "drop", "active"]


@each_of(
    ("words", "says"),
    [
        (("set", "all"), "give at least one change"),
        (("set", "all", "--before", "x", "--last"), "give --before or --last, not both"),
        (("set", "all", "--clear", "colour"), "'colour' is not a key of a rule; the keys are apis, blank, capture, clients, directions, expires"),
        (("set", "all", "--clear", "capture", "--capture", "full"), "--clear names a key that another option sets, or names it twice"),
        (("add", "x", "--expires", "soon"), "'soon' is not an instant"),
        (("add", "x", "--expires", "9" * 30 + "d"), "is not an instant"),
        (("add", "x", "--min-size", "9" * 30), "is not a size: it must be below 8388608TiB"),
        (("add", "x", "--sample-frames", "2"), "2.0 is not in the range 0.0<=x<=1.0"),
        (("add", "x", "--direction", "both"), "'both' is not one of"),
    ],
)
def test_wrong_usage_is_said_before_anybody_is_asked(cli: Cli, words: tuple[str, ...], says: str) -> None:
    result = cli("taps", *words)
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr
    assert cli.plane.audits == []


def completed(words: list[str], incomplete: str) -> list[str]:
    shell = ShellComplete(main, {}, "framegate", "_FRAMEGATE_COMPLETE")
    return [item.value for item in shell.get_completions(words, incomplete)]


def test_names_are_completed_from_what_there_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.plane.tap_rules = [TapRule(name="debug"), TapRule(name="dump"), ALL]
    monkeypatch.setenv("FRAMEGATE_ADDRESS", cli.address)
    assert completed(["taps", "set"], "d") == ["debug", "dump"]
    assert completed(["taps", "remove"], "") == ["debug", "dump", "all"]
    assert completed(["taps", "add", "x", "--before"], "a") == ["all"]
    assert completed(["taps", "add", "x", "--listener"], "") == ["kafka", "plain"]
    monkeypatch.delenv("FRAMEGATE_ADDRESS")
    assert completed(["taps", "remove", "--address", cli.address], "a") == ["all"]


def test_without_an_answer_nothing_is_completed_and_nothing_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FRAMEGATE_ADDRESS", "unix:/nowhere/admin.sock")
    assert completed(["taps", "remove"], "") == []
    assert capfd.readouterr() == ("", "")
