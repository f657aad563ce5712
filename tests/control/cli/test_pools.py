"""``framegate pool``."""

import dataclasses

import pytest

from framegate.proxy.config.model import TapConfig
from tests.fakes.cli import Cli
from tests.fakes.plane import holder


def test_get_shows_memory_by_kind_and_processors(cli: Cli) -> None:
    first, second, heads, *rows = cli("pool", "get").stdout.splitlines()
    assert first == "memory pool 256 MiB, bounded, 10 B in use; 2 processors"
    assert second == "begun 4 B, pending 4 B, TLS 2 B; 1 frame waiting for admission slots"
    assert heads.split() == ["PROCESSOR", "PID", "STATE", "SHARE", "IN", "USE", "BEGUN", "PENDING", "TLS", "TAP", "WAITING", "RESTARTS"]
    assert [row.split() for row in rows] == [
        [slot, f"10{slot}", "running", "128", "MiB", "5", "B", "2", "B", "2", "B", "1", "B", "7", "B", slot, "0"] for slot in "01"
    ]


def test_get_shows_the_taps_bound_and_what_listeners_are_guaranteed(cli: Cli) -> None:
    pool = dataclasses.replace(cli.plane.config.memory_pool, shares={"plain": 10, "kafka": 60})
    cli.plane.desired.config = dataclasses.replace(cli.plane.config, memory_pool=pool, tap=TapConfig(directory="t"))
    _, second, third, *_ = cli("pool", "get").stdout.splitlines()
    assert second.endswith("; tap queues 14 B of 16 MiB")
    assert third == "guaranteed: kafka 60 %, plain 10 %"
    assert cli.json("pool", "get")["memory_pool"]["guaranteed_percents"] == {"kafka": 60, "plain": 10}


def test_get_shows_who_holds_most(cli: Cli) -> None:
    cli.plane.holders = [
        holder("0-1-1", 3 << 20),
        holder("1-1-7", 5 << 20, kind="pending", side="upstream", peer="10.1.0.1:9092", muted=(), muted_ns=0),
        holder("0-1-2", 1),
    ]
    table = cli("pool", "get", "--top", "2").stdout.partition("\n\n")[2].splitlines()
    assert table[0].split() == ["CHANNEL", "LISTENER", "SIDE", "PEER", "KIND", "HOLDS", "LAST", "MOVED", "MUTED"]
    assert [line.split()[:7] for line in table[1:]] == [
        ["1-1-7", "kafka", "upstream", "10.1.0.1:9092", "pending", "5", "MiB"],
        ["0-1-1", "kafka", "downstream", "10.0.0.9:51000", "begun", "3", "MiB"],
    ]
    assert table[1].split()[-2:] == ["ago", "-"]
    assert "  memory for " in table[2]
    rows = cli.json("pool", "get")["holders"]
    assert [(row["channel_id"], row["held_bytes"], row["kind"]) for row in rows] == [
        ("1-1-7", 5 << 20, "KIND_PENDING"), ("0-1-1", 3 << 20, "KIND_BEGUN"), ("0-1-2", 1, "KIND_BEGUN"),
    ]  # fmt: skip
    assert (rows[1]["mute_causes"], rows[1]["mute_time"], "mute_time" in rows[0]) == (["MUTE_CAUSE_MEMORY"], "2027-01-15T08:00:01.500Z", False)


def test_set_changes_either_or_both(cli: Cli) -> None:
    assert cli.json("pool", "set", "--size", "512MiB")["memory_pool"]["size_bytes"] == 512 << 20
    assert cli.json("pool", "set", "--processors", "3")["processor_pool"]["processor_count"] == 3
    cli.json("pool", "set", "--size", "600MiB", "--processors", "1")
    assert (cli.plane.pool, cli.plane.processors) == (600 << 20, 1)
    assert [row["method"].rpartition("/")[2] for row in cli.plane.audits[-2:]] == ["UpdateMemoryPool", "UpdateProcessorPool"]


def test_an_etag_is_of_one_of_the_pools(cli: Cli) -> None:
    etag = cli.json("pool", "get")["memory_pool"]["etag"]
    assert cli("pool", "set", "--size", "512MiB", "--etag", "beef").exit_code == 4
    assert cli("pool", "set", "--size", "512MiB", "--etag", etag, "--dry-run", "--reason", "incident 7").exit_code == 0
    assert (cli.plane.pool, cli.plane.audits[-1]["request"]["reason"]) == (256 << 20, "incident 7")
    assert cli("pool", "set", "--size", "512MiB", "--etag", etag).exit_code == 0
    assert cli("pool", "set", "--size", "512MiB", "--processors", "1", "--etag", etag).exit_code == 2


def test_a_pool_that_shrinks_lets_processors_go_first(cli: Cli) -> None:
    cli.json("pool", "set", "--size", "100MiB", "--processors", "1")
    assert [row["method"].rpartition("/")[2] for row in cli.plane.audits] == ["UpdateProcessorPool", "UpdateMemoryPool"]


@pytest.mark.parametrize("words", [(), ("--size", "0"), ("--processors", "0"), ("--processors", "65")])
def test_nothing_to_set_or_out_of_range_is_wrong_usage(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("pool", "set", *words).exit_code == 2


def test_a_size_out_of_range_names_the_option(cli: Cli) -> None:
    assert "--size: must be 65536 to" in cli("pool", "set", "--size", "1KiB").stderr


def test_a_refusal_of_the_state_exits_with_1(cli: Cli) -> None:
    result = cli("pool", "set", "--size", "64KiB")
    assert (result.exit_code, result.stderr.rpartition(" (")[2]) == (1, "POOL_BELOW_MAX_RECEIVE_SIZE)\n")


def test_who_decides_a_size_is_said_where_it_is_not_the_configuration(cli: Cli) -> None:
    pool = cli.plane.parts.pool
    pool.size_origin = pool.processors_origin = "container"
    assert (
        cli("pool", "get")
        .stdout.splitlines()[0]
        .endswith("256 MiB (from the memory available), bounded, 10 B in use; 2 processors (from the CPUs available)")
    )
    assert cli.json("pool", "get")["memory_pool"]["size_origin"] == "ORIGIN_CONTAINER"
    status = cli("status").stdout
    assert "2 running (from the CPUs available)" in status
    assert "256 MiB in use (from the memory available)" in status
    first = cli("pool", "set", "--size", "300MiB", "--processors", "2").stdout.splitlines()[0]
    assert first.count("(set at run time, until the next start)") == 2
    assert cli.json("pool", "get")["processor_pool"]["size_origin"] == "ORIGIN_OPERATOR"
