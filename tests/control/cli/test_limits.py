"""``framegate limits``."""

import pathlib

import pytest

from framegate.control.bounds import FIELD_NAMES
from framegate.control.configuration.limit_rules import read_limit_rules
from framegate.proxy.config.limits import LimitOverride, LimitRule, LimitsConfig, ListenerLimits, RateLimits
from tests.fakes.cells import fill
from tests.fakes.cli import Cli
from tests.fakes.plane import FakePlane


def test_get_shows_all_or_one(cli: Cli) -> None:
    unlimited = dict.fromkeys([name for name, own in FIELD_NAMES.items() if own in RateLimits.__dataclass_fields__], 0)
    assert [{name: value for name, value in limit.items() if name != "etag"} for limit in cli.json("limits", "get")] == [
        {"listener": "kafka", "max_receive_size_bytes": 104857600, "rules": [], **unlimited},
        {"listener": "plain", "max_receive_size_bytes": 104857600, "rules": [], **unlimited, "max_connection_count": 10},
    ]
    assert "100 MiB" in cli("limits", "get", "--listener", "plain").stdout


def test_set_takes_units_and_shows_what_is_in_force(cli: Cli) -> None:
    result = cli("limits", "set", "--listener", "plain", "--max-receive-size", "1MiB")
    assert (result.exit_code, cli.plane.limits["plain"]) == (0, 1 << 20)
    assert "1048576" in result.stdout


def test_a_change_that_was_aborted_exits_with_4(cli: Cli) -> None:
    cli.plane.failure = FakePlane.aborted()
    result = cli("limits", "set", "--listener", "plain", "--max-receive-size", "1MiB")
    assert (result.exit_code, result.stderr) == (4, "framegate: processor 1 did not answer within 30 s (PROCESSOR_SILENT)\n")


@pytest.mark.parametrize(("size", "code"), [("0", 2), ("2GiB", 2), ("1 furlong", 2), ("2147483647", 0)])
def test_sizes_out_of_range_are_wrong_usage(cli: Cli, size: str, code: int) -> None:
    cli.plane.pool = 4 << 30
    assert cli("limits", "set", "--listener", "plain", "--max-receive-size", size).exit_code == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--node", "--connections", "10000001"), "--connections: must be 0 to 10000000, not 10000001"),
        (("--node", "--connections", str(2**64)), "--connections': 18446744073709551616 is not in the range"),
        (("--per-address", "--connection-rate", "1000001"), "--connection-rate: must be 0 to 1000000, not 1000001"),
        (("--listener", "kafka", "--request-frames-rate", str(2**63)), "--request-frames-rate': 9223372036854775808 is not in the range"),
        (("--network", "10.0.0.0/8", "--response-bytes-rate", "2TiB"), f"--response-bytes-rate: must be 0 to {2**40} bytes, not {2**41}"),
        (("--listener", "kafka", "--max-receive-size", "2GiB"), f"--max-receive-size: must be 1 to {2**31 - 1} bytes, not {2**31}"),
        (("--listener", "kafka", "--max-receive-size", str(2**64)), "is not a size: it must be below 8388608TiB"),
        (("--listener", "kafka", "--max-receive-size", "1XiB"), "write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB"),
        (("--network", "::1", "--connections", "5"), "--network: ::1/128 is part of a /64"),
        (("--network", "", "--connections", "5"), "--network: '' does not appear to be an IPv4 or IPv6 network"),
        (("--listener", "", "--connections", "5"), "--listener': '' is empty: write the name of a listener"),
    ],
)
def test_what_is_out_of_range_is_said_by_the_name_of_its_option(cli: Cli, words: tuple[str, ...], said: str) -> None:
    result = cli("limits", "set", *words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert [row["after"] for row in cli.plane.audits if row["result"] == "OK"] == []


def test_an_address_is_the_network_of_that_address(cli: Cli) -> None:
    assert cli("limits", "set", "--network", "127.0.0.1", "--connections", "5").exit_code == 0
    assert cli("limits", "set", "--network", "127.0.0.1/32", "--connection-rate", "7").exit_code == 0
    assert cli.plane.node_quotas.overrides == (LimitOverride(network="127.0.0.1/32", connections=5, connection_rate=7),)
    assert cli("limits", "set", "--network", "127.0.0.1", "--remove").exit_code == 0
    assert cli.plane.node_quotas.overrides == ()


def test_an_override_that_is_not_there_cannot_be_removed_and_exits_with_3(cli: Cli) -> None:
    result = cli("limits", "set", "--network", "10.0.0.0/8", "--remove")
    assert (result.exit_code, result.stderr) == (3, "framegate: 10.0.0.0/8 has no override; overrides exist for: none\n")
    assert cli("limits", "set", "--network", "192.0.2.0/24", "--access", "deny").exit_code == 0
    assert "overrides exist for: 192.0.2.0/24" in cli("limits", "set", "--network", "192.0.2.0/25", "--remove").stderr
    assert cli.plane.node_quotas.overrides == (LimitOverride(network="192.0.2.0/24", access="deny"),)


def test_an_unknown_listener_exits_with_3(cli: Cli) -> None:
    assert cli("limits", "get", "--listener", "nobody").exit_code == 3


def test_quotas_of_a_listener_are_set_with_units_and_shown(cli: Cli) -> None:
    result = cli("limits", "set", "--listener", "kafka", "--connections", "5", "--request-bytes-rate", "1MiB", "--response-frames-rate", "9")
    assert result.exit_code == 0
    assert cli.plane.quotas["kafka"] == ListenerLimits(connections=5, request_bytes_rate=1 << 20, response_frames_rate=9)
    assert result.stdout.splitlines()[1].split() == ["kafka", "100", "MiB", "104857600", "5", "-", "1", "MiB", "-", "-", "9"]


def test_limit_rules_are_set_from_a_file_and_shown_in_the_form_that_set_reads(cli: Cli, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.yaml"
    text = "rules: [{name: etl, client_ids: [etl-*], max_receive_size: 4MiB, request_bytes_rate: 10MiB}, "
    file.write_text(text + "{name: all, report_only: true, max_receive_size: 5}]")
    etl = LimitRule(name="etl", client_ids=("etl-*",), max_receive_size=4 << 20, request_bytes_rate=10 << 20)
    rules = etl, LimitRule(name="all", max_receive_size=5, report_only=True)
    assert cli("limits", "set", "--listener", "kafka", "--connections", "5").exit_code == 0
    assert cli("limits", "set", "--listener", "kafka", "--rules", str(file), "--dry-run").exit_code == 0
    assert cli.plane.quotas["kafka"].rules == ()
    assert cli("limits", "set", "--listener", "kafka", "--rules", str(file), "--max-receive-size", "1MiB").exit_code == 0
    assert (cli.plane.quotas["kafka"], cli.plane.limits["kafka"]) == (ListenerLimits(connections=5, rules=rules), 1 << 20)
    shown = cli("limits", "get", "--listener", "kafka").stdout
    assert read_limit_rules(shown[shown.index("rules:") :]) == rules
    several = cli("limits", "get")
    assert ("rules:" in several.stdout, "there are limit rules, which --listener shows: kafka" in several.stderr) == (False, True)
    assert [rule["name"] for rule in cli.json("limits", "get", "--listener", "kafka")[0]["rules"]] == ["etl", "all"]
    file.write_text("rules: [{name: etl, networks: [x]}]")
    wrong = cli("limits", "set", "--listener", "kafka", "--rules", str(file))
    assert (wrong.exit_code, "--rules[0].networks[0]: is no network" in wrong.stderr) == (2, True)
    file.write_text("rules: [{nam: etl}]")
    wrong = cli("limits", "set", "--listener", "kafka", "--rules", str(file))
    assert (wrong.exit_code, "rules[0].nam" in wrong.stderr) == (2, True)
    assert cli("limits", "set", "--node", "--rules", str(file)).exit_code == 2
    assert cli.plane.quotas["kafka"].rules == rules
    file.write_text("{}")
    assert cli("limits", "set", "--listener", "kafka", "--rules", str(file)).exit_code == 0
    assert cli.plane.quotas["kafka"] == ListenerLimits(connections=5)


def test_quotas_of_the_node_and_of_addresses_are_set_and_shown(cli: Cli) -> None:
    assert cli("limits", "set", "--node", "--connections", "100").exit_code == 0
    assert cli("limits", "set", "--per-address", "--connection-rate", "20").exit_code == 0
    assert cli("limits", "set", "--per-address", "--connections", "3").exit_code == 0
    assert cli.plane.node_quotas == LimitsConfig(connections=100, per_address=RateLimits(connections=3, connection_rate=20))
    shown = cli.json("limits", "get", "--node")
    assert (shown["max_connection_count"], shown["per_address"]["connections_per_second"], shown["overrides"]) == (100, 20, [])


def test_an_override_is_added_changed_and_removed_beside_others(cli: Cli) -> None:
    for words in (("10.0.0.0/8", "--connections", "7"), ("192.0.2.0/24", "--access", "deny"), ("10.0.0.0/8", "--response-bytes-rate", "2KiB")):
        assert cli("limits", "set", "--network", *words).exit_code == 0
    ten = LimitOverride(network="10.0.0.0/8", connections=7, response_bytes_rate=2048)
    assert cli.plane.node_quotas.overrides == (ten, LimitOverride(network="192.0.2.0/24", access="deny"))
    shown = cli("limits", "get", "--node").stdout
    assert "each of 192.0.2.0/24" in shown
    assert "as others" in shown
    assert cli("limits", "set", "--network", "192.0.2.0/24", "--remove").exit_code == 0
    assert cli.plane.node_quotas.overrides == (ten,)
    assert cli("limits", "set", "--network", "10.0.0.0/8", "--remove").exit_code == 0
    assert cli.plane.node_quotas == LimitsConfig()


@pytest.mark.parametrize(
    "words",
    [
        ("set", "--connections", "5"),
        ("set", "--node", "--listener", "kafka", "--connections", "5"),
        ("set", "--node"),
        ("set", "--node", "--max-receive-size", "1MiB"),
        ("set", "--node", "--access", "deny"),
        ("set", "--listener", "kafka", "--remove"),
        ("set", "--network", "10.0.0.0/8", "--remove", "--connections", "5"),
        ("set", "--network", "10.0.0.1/8", "--connections", "5"),
        ("set", "--node", "--connections", "-1"),
        ("set", "--node", "--connections", "10000001"),
        ("get", "--node", "--listener", "kafka"),
    ],
)
def test_what_says_nothing_or_two_things_is_wrong_usage(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("limits", *words).exit_code == 2
    assert (cli.plane.node_quotas, cli.plane.quotas["kafka"]) == (LimitsConfig(), ListenerLimits())


def test_a_dry_run_of_a_size_says_what_it_would_have_refused(cli: Cli) -> None:
    fill(cli.plane, 0, {("framegate.frame.size", "downstream", "plain"): [0, 0, 10, 1200, 0, 0, 0, 0, 0, 0, 0, 0]})
    for size, text in (
        ("8KiB", "it would have refused 0 to 1,200 frames of the 1,210 that clients sent in the last "),
        ("4KiB", "it would have refused 1,200 frames of the 1,210 "),
        ("1MiB", "it would have refused 0 frames of the 1,210 "),
    ):
        assert text in cli("limits", "set", "--listener", "plain", "--max-receive-size", size, "--dry-run").stderr
    assert "refused" not in cli("limits", "set", "--listener", "plain", "--connections", "7", "--dry-run").stderr
    assert "refused" not in cli("limits", "set", "--listener", "plain", "--max-receive-size", "8KiB").stderr
