"""The framegate that runs here, asked over its API: a real service over a fake plane, and a whole one."""

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from framegate.control.doctor.finding import Finding
from framegate.control.doctor.running import Running
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.status import ProcessorState, ProcessorStatus
from framegate.proxy.config.model import ListenerTimeouts, ProxyConfig
from tests.fakes.cli import Cli, answering, served
from tests.fakes.surroundings import around, config_of, one


def why(address: str) -> str:
    return f"nobody is at {address}"


def ask(at: Surroundings, address: str, version: str = "") -> tuple[Running, list[Finding]]:
    running = Running(at, address, why, version)
    return running, list(running.look())


@pytest.fixture
def cli() -> Iterator[Cli]:
    with served() as at_hand:
        yield at_hand


def test_a_control_plane_that_does_not_answer_is_a_fault_within_the_timeout(tmp_path: Path) -> None:
    with answering(f"unix:{tmp_path}/hangs.sock"):
        begun = time.monotonic()
        _, (found,) = ask(around(tmp_path, timeout_s=0.2), f"unix:{tmp_path}/hangs.sock")
        assert time.monotonic() - begun < 3
    assert (found.level, "did not answer within 0.2 s" in found.found) == ("fault", True)


def test_an_answer_with_an_error_is_a_fault(tmp_path: Path) -> None:
    with answering(f"unix:{tmp_path}/fails.sock") as server:
        for code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INTERNAL):
            server.code = code
            _, (found,) = ask(around(tmp_path), f"unix:{tmp_path}/fails.sock")
            assert (found.level, code.name in found.found) == ("fault", True)


def test_one_that_serves_is_shown_with_its_figures_and_another_version_is_a_warning(tmp_path: Path, cli: Cli) -> None:
    version = cli.plane.build.version
    running, found = ask(around(tmp_path), cli.address, version)
    assert running.answered
    assert one(found, "framegate ").figures["processors"] == len(cli.plane.writers)
    assert one(found, "version").figures["own_version"] == version
    other = one(ask(around(tmp_path), cli.address, "99.0")[1], "version")
    assert (other.level, "runs the version" in other.found, "and this program is 99.0" in other.found) == ("warning", True, True)
    assert "runs the version" not in one(ask(around(tmp_path), cli.address, "")[1], "version").found


def test_a_framegate_that_takes_no_connections_is_a_warning(tmp_path: Path, cli: Cli) -> None:
    cli.plane.accepting = False
    _, found = ask(around(tmp_path), cli.address)
    assert (one(found, "framegate ").level, "is drained" in one(found, "framegate ").found) == ("warning", True)


def test_processors_that_are_down_are_a_warning_and_a_fault_if_none_is_up(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for up, level in ((0, "fault"), (1, "warning"), (2, "ok")):
        states: list[ProcessorState] = ["running"] * up + ["starting"] * (2 - up)
        rows = [ProcessorStatus(slot=slot, pid=0, generation=1, state=state, restarts=3, heartbeat_age_ms=-1) for slot, state in enumerate(states)]
        monkeypatch.setattr(cli.plane, "processor_statuses", lambda rows=rows: rows)
        found = one(ask(around(tmp_path), cli.address)[1], "framegate ")
        assert (found.level, found.figures["running"], found.figures["processors"]) == (level, up, 2)


def test_the_pid_of_another_process_is_not_taken_for_framegates(tmp_path: Path, cli: Cli) -> None:
    for line in ("python\0-m\0pytest", "python\0/opt/framegate/bin/framegate\0status", "serve"):
        assert ask(around(tmp_path, {f"proc/{os.getpid()}/cmdline": line}), cli.address)[0].pid is None
    files = {f"proc/{os.getpid()}/cmdline": "python\0/opt/framegate/bin/framegate\0serve\0--config\0x"}
    assert ask(around(tmp_path, files), cli.address)[0].pid == os.getpid()
    assert ask(around(tmp_path / "none"), cli.address)[0].pid is None


def test_a_clock_that_was_set_since_the_start_is_a_warning(tmp_path: Path, cli: Cli) -> None:
    """The kernel's own clock says when the process started; the fake's plane says when it thinks it did."""
    started_ago = time.time() - cli.plane.started_ns / 1e9
    ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - started_ago) * os.sysconf("SC_CLK_TCK"))
    files = {
        f"proc/{os.getpid()}/cmdline": "framegate\0serve",
        f"proc/{os.getpid()}/stat": f"{os.getpid()} (a (name) S) S " + " ".join(["0"] * 18) + f" {ticks} 0\n",
    }
    for by, level in ((0.0, "ok"), (-9.5, "ok"), (3600.0, "warning"), (-3600.0, "warning")):
        found = one(ask(around(tmp_path, files, now=lambda by=by: time.time() + by), cli.address)[1], "since the start")
        assert (found.level, found.figures["step_s"]) == (level, pytest.approx(by, abs=0.5))


def test_a_file_that_differs_from_what_runs_is_a_warning_with_its_keys(tmp_path: Path, cli: Cli) -> None:
    def found(config: ProxyConfig) -> Finding:
        return one(ask(around(tmp_path, config=config), cli.address)[1], "configuration in force")

    config = cli.plane.config
    first, *rest = config.listeners
    name = first.name
    cases = {
        f"listeners[{name}].max_receive_size": {"max_receive_size": 7},
        "listeners[other]": {"name": "other"},
        f"listeners[{name}].address": {"address": "127.0.0.1:19"},
        f"listeners[{name}].timeouts.idle": {"timeouts": ListenerTimeouts(idle_ms=5)},
    }
    for words, listener in cases.items():
        changed: Any = dataclasses.replace(first, **listener)  # type: ignore[arg-type]
        differs = found(dataclasses.replace(config, listeners=(changed, *rest)))
        assert (differs.level, words in differs.found) == ("warning", True), words
    assert "upstreams[up]" in found(dataclasses.replace(config, upstreams=config_of().upstreams)).found
    assert found(config).level == found(dataclasses.replace(config, zone="")).level == "ok"
    assert found(dataclasses.replace(config, processors=63)).level == "warning"


def test_its_own_warnings_are_shown(tmp_path: Path, cli: Cli) -> None:
    cli.plane.troubles = ["the tap loses frames"]
    _, found = ask(around(tmp_path), cli.address)
    assert [item.found for item in found if item.level == "warning" and "tap" in item.found] == ["the tap loses frames"]
