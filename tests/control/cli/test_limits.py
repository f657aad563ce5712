"""``framegate limits``."""

from collections.abc import Iterator

import pytest

from tests.fakes.cli import Cli, served
from tests.fakes.plane import FakePlane


@pytest.fixture
def cli() -> Iterator[Cli]:
    with served() as cli:
        yield cli


def test_get_shows_all_or_one(cli: Cli) -> None:
    assert cli.json("limits", "get") == [
        {"listener": "kafka", "max_receive_size_bytes": 104857600},
        {"listener": "plain", "max_receive_size_bytes": 104857600},
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


def test_an_unknown_listener_exits_with_3(cli: Cli) -> None:
    assert cli("limits", "get", "--listener", "nobody").exit_code == 3
