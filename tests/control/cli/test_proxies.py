"""``framegate status`` and ``framegate drain``."""

import pytest

from framegate.control.cli.output import size_text
from framegate.proxy.config.model import GIB, MIB
from tests.fakes.cli import Cli, served
from tests.fakes.plane import channel_row, handler_process

UNTIL_STOP = "not ready; connections are accepted until SIGTERM, and those of other pods end one by one\n"


def test_status_says_what_runs(cli: Cli) -> None:
    text = cli("status").stdout
    assert ("edge-1" in text, "serving" in text, "plain Python" in text) == (True, True, True)
    assert len(cli("status", "--output", "json").stdout.splitlines()) < 120, "a screen or two, whatever the number of modules"


def test_status_ends_with_1_until_connections_are_accepted(cli: Cli) -> None:
    for words in ((), ("--output", "json")):
        cli.plane.started = False
        found = cli("status", *words)
        assert (found.exit_code, "starting" in found.stdout.lower()) == (1, True)
        cli.plane.started = True
        assert cli("status", *words).exit_code == 0


def test_status_says_how_it_is_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.service.proxies.memory_limit", lambda: GIB)
    monkeypatch.setattr("framegate.control.service.proxies.memory_usage", lambda: 100 * MIB)
    monkeypatch.setattr("framegate.control.service.proxies.process_memory", lambda pid: 62 * MIB)
    with served() as cli:
        lines = cli("status").stdout.splitlines()
        values = dict(line.split("  ", 1) for line in lines)
        assert values["processors"].strip() == "2 of 2 running"
        assert values["memory pool"].strip() == "10 B of 256 MiB in use, 1 frame waiting for admission slots"
        assert values["started"].strip().startswith("2027-01-15 07:59:59 UTC (")
        assert ("warning" in values, values["warnings"].strip()) == (False, "no problems")
        found = cli.json("status")
        assert (found["node"], found["memory_pool"]["usage_bytes"], len(found["processor_pool"]["processors"])) == ("edge-1", 10, 2)
        assert (found["memory"]["limit_bytes"], found["memory"]["usage_bytes"], found["warnings"]) == (GIB, 100 * MIB, [])
        need = found["memory"]["need_bytes"]
        assert sum(part["need_bytes"] for part in found["memory"]["parts"]) == need > 256 * MIB  # of the pool alone
        used = "62 MiB in framegate's processes; the container uses 100 MiB of its 1 GiB"
        assert values["memory"].strip() == f"{used}; up to {size_text(need)} may be needed, plus connections of kafka"


def test_status_says_how_many_handler_processes_run_where_there_are_any(cli: Cli) -> None:
    assert "handler processes" not in cli("status").stdout
    cli.plane.handlers = [handler_process(), handler_process(1, state="restarting")]
    assert any(line.split() == ["handler", "processes", "1", "of", "2", "running"] for line in cli("status").stdout.splitlines())
    assert [row["slot"] for row in cli.json("status")["handler_processes"]] == [0, 1]


def test_status_warns_when_the_configuration_in_force_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.service.proxies.memory_limit", lambda: 256 * MIB)
    monkeypatch.setattr("framegate.control.service.proxies.memory_usage", lambda: None)
    with served() as cli:
        lines = cli("status").stdout.splitlines()
        assert "; the container uses an unknown amount of its 256 MiB;" in next(line for line in lines if line.startswith("memory  "))
        (warning,) = (line for line in lines if line.startswith("warning"))
        found = cli.json("status")
        need = -(-found["memory"]["need_bytes"] // MIB)
        assert f"the memory pool of 256MiB does not fit into the container's 256MiB: {need}MiB may be needed" in warning
        assert len(found["warnings"]) == 1
        assert "no problems" not in "".join(lines)


def test_a_problem_has_its_severity_before_it_and_another_warning_is_one(cli: Cli) -> None:
    cli.plane.troubles = ["critical: Every connection of a listener fails (a): 3 a second; `x`", "info: a: b", "warning: c", "the tap: loses"]
    lines = [line for line in cli("status").stdout.splitlines() if line.startswith(("critical", "info", "warning"))]
    assert [line.split(maxsplit=1) for line in lines] == [
        ["critical", "Every connection of a listener fails (a): 3 a second; `x`"],
        ["info", "a: b"],
        ["warning", "c"],
        ["warning", "the tap: loses"],
    ]


def test_drain_waits_unless_told_not_to(cli: Cli) -> None:
    cli.plane.add(channel_row("0-1-1"))
    assert cli.json("drain", "--no-wait") == {"closed_connection_count": 0, "open_connection_count": 1, "accepting": True}
    assert cli.plane.accepting
    assert cli("drain", "--no-wait", "--accept", "until-stop").stdout == UNTIL_STOP
    assert cli("drain", "--no-wait").stdout == UNTIL_STOP
    assert cli.plane.accepting
    assert cli("drain", "--timeout", "1500ms", "--reason", "rollout").stdout == "drained: 1 connection ended, none left\n"
    cli.plane.add(channel_row("0-1-2"), channel_row("0-1-3"))
    assert cli("drain", "--no-wait").stdout == "draining: 0 connections ended, 2 left\n"
    assert cli("drain", "--no-wait", "--accept", "refuse").stdout == "draining: 0 connections ended, 2 left\n"
    assert [(timeout, wait, accept, reason) for _, timeout, wait, accept, _, reason in cli.plane.asked] == [
        (None, False, None, ""),
        (None, False, "until_stop", ""),
        (None, False, None, ""),
        (1500, True, None, "rollout"),
        (None, False, None, ""),
        (None, False, "refuse", ""),
    ]
    for wrong in (("--accept", "until-stop"), ("--no-wait", "--timeout", "1s", "--accept", "until-stop"), ("--accept", "maybe")):
        assert cli("drain", *wrong).exit_code == 2
