"""``framegate pool``."""

from collections.abc import Iterator

import pytest

from control.errors import FailedPreconditionError
from tests.fakes.cli import Cli, served


@pytest.fixture
def cli() -> Iterator[Cli]:
    with served() as cli:
        yield cli


def test_get_shows_memory_and_processors(cli: Cli) -> None:
    text = cli("pool", "get").stdout
    assert "memory pool 256 MiB, 10 B in use; 2 processors" in text
    assert [line.split()[:3] for line in text.splitlines()[2:]] == [["0", "100", "running"], ["1", "101", "running"]]


def test_set_changes_either_or_both(cli: Cli) -> None:
    assert cli.json("pool", "set", "--size", "512MiB")["memory_pool"]["size_bytes"] == 512 << 20
    assert cli.json("pool", "set", "--processors", "3")["processor_pool"]["size"] == 3
    cli.json("pool", "set", "--size", "600MiB", "--processors", "1")
    assert (cli.plane.pool, cli.plane.processors) == (600 << 20, 1)
    assert [row["method"].rpartition("/")[2] for row in cli.plane.audits[-2:]] == ["UpdateMemoryPool", "UpdateProcessorPool"]


def test_a_pool_that_shrinks_lets_processors_go_first(cli: Cli) -> None:
    cli.json("pool", "set", "--size", "100MiB", "--processors", "1")
    assert [row["method"].rpartition("/")[2] for row in cli.plane.audits] == ["UpdateProcessorPool", "UpdateMemoryPool"]


@pytest.mark.parametrize("words", [(), ("--size", "0"), ("--processors", "0"), ("--processors", "65")])
def test_nothing_to_set_or_out_of_range_is_wrong_usage(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("pool", "set", *words).exit_code == 2


def test_a_refusal_of_the_state_exits_with_1(cli: Cli) -> None:
    cli.plane.failure = FailedPreconditionError("a share would be too small", reason="POOL_TOO_SMALL")
    result = cli("pool", "set", "--size", "1")
    assert (result.exit_code, result.stderr) == (1, "framegate: a share would be too small (POOL_TOO_SMALL)\n")
