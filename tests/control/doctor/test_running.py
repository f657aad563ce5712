"""The framegate that runs here, asked over its API: a real service over a fake plane, and a whole one."""

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from framegate.control.doctor.finding import Finding
from framegate.control.doctor.running import Running
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.status import CertificateStatus, ProcessorState, ProcessorStatus
from framegate.proxy.config.model import ProxyConfig
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


def version_of(cli: Cli) -> str:
    return cli.plane.build.version


def test_who_listens_and_does_not_answer_is_a_fault_in_its_time(tmp_path: Path) -> None:
    with answering(f"unix:{tmp_path}/hangs.sock"):
        begun = time.monotonic()
        _, (found,) = ask(around(tmp_path, timeout_s=0.2), f"unix:{tmp_path}/hangs.sock")
        assert time.monotonic() - begun < 3
    assert (found.level, "did not answer within 0.2 s" in found.found) == ("fault", True)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INTERNAL])
def test_who_answers_with_an_error_is_a_fault(tmp_path: Path, code: grpc.StatusCode) -> None:
    with answering(f"unix:{tmp_path}/fails.sock") as server:
        server.code = code
        _, (found,) = ask(around(tmp_path), f"unix:{tmp_path}/fails.sock")
    assert (found.level, code.name in found.found) == ("fault", True)


def test_one_that_serves_is_told_with_its_figures(tmp_path: Path, cli: Cli) -> None:
    running, found = ask(around(tmp_path), cli.address, version_of(cli))
    assert running.answered
    state = one(found, "framegate ")
    assert state.figures["processors"] == len(cli.plane.writers)
    assert one(found, "version").figures["own_version"] == version_of(cli)


@pytest.mark.parametrize(("version", "words"), [("99.0", "runs the version"), ("", "")])
def test_another_version_than_this_program_is_told(tmp_path: Path, cli: Cli, version: str, words: str) -> None:
    _, found = ask(around(tmp_path), cli.address, version)
    told = one(found, "version")
    assert words in told.found
    assert not words or (told.level, "and this program is 99.0" in told.found) == ("warning", True)


def test_one_that_takes_no_connections_is_told(tmp_path: Path, cli: Cli) -> None:
    cli.plane.accepting = False
    _, found = ask(around(tmp_path), cli.address)
    assert (one(found, "framegate ").level, "is drained" in one(found, "framegate ").found) == ("warning", True)


@pytest.mark.parametrize(("up", "level"), [(0, "fault"), (1, "warning"), (2, "ok")])
def test_processors_that_are_down_are_told(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, up: int, level: str) -> None:
    def status() -> list[ProcessorStatus]:
        states: list[ProcessorState] = ["running"] * up + ["starting"] * (2 - up)
        return [ProcessorStatus(slot=slot, pid=0, generation=1, state=state, restarts=3, heartbeat_age_ms=-1) for slot, state in enumerate(states)]

    monkeypatch.setattr(cli.plane, "processor_statuses", status)
    found = one(ask(around(tmp_path), cli.address)[1], "framegate ")
    assert (found.level, found.figures["running"], found.figures["processors"]) == (level, up, 2)


def test_a_number_that_is_another_process_here_is_not_taken_for_it(tmp_path: Path, cli: Cli) -> None:
    for line in ("python\0-m\0pytest", "python\0/opt/framegate/bin/framegate\0status", "serve"):
        assert ask(around(tmp_path, {f"proc/{os.getpid()}/cmdline": line}), cli.address)[0].pid is None
    files = {f"proc/{os.getpid()}/cmdline": "python\0/opt/framegate/bin/framegate\0serve\0--config\0x"}
    assert ask(around(tmp_path, files), cli.address)[0].pid == os.getpid()
    assert ask(around(tmp_path / "none"), cli.address)[0].pid is None


@pytest.mark.parametrize(("by", "level"), [(0.0, "ok"), (-9.5, "ok"), (3600.0, "warning"), (-3600.0, "warning")])
def test_a_clock_that_was_set_since_the_start_is_told(tmp_path: Path, cli: Cli, by: float, level: str) -> None:
    """The kernel's own clock says when the process started; the fake's plane says when it thinks it did."""
    started_ago = time.time() - cli.plane.started_ns / 1e9
    ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - started_ago) * os.sysconf("SC_CLK_TCK"))
    files = {
        f"proc/{os.getpid()}/cmdline": "framegate\0serve",
        f"proc/{os.getpid()}/stat": f"{os.getpid()} (a (name) S) S " + " ".join(["0"] * 18) + f" {ticks} 0\n",
    }
    found = one(ask(around(tmp_path, files, now=lambda: time.time() + by), cli.address)[1], "since the start")
    assert (found.level, found.figures["step_s"]) == (level, pytest.approx(by, abs=0.5))


def changed(config: ProxyConfig, **listener: object) -> ProxyConfig:
    first, *rest = config.listeners
    return dataclasses.replace(config, listeners=(dataclasses.replace(first, **listener), *rest))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        ({"max_receive_size": 7}, "max_receive_size is"),
        ({"name": "other"}, "listeners is"),
        ({"address": "127.0.0.1:19"}, "address is"),
    ],
)
def test_a_file_that_differs_from_what_runs_is_told_by_its_keys(tmp_path: Path, cli: Cli, listener: dict[str, object], words: str) -> None:
    config = changed(cli.plane.config, **listener)
    found = one(ask(around(tmp_path, config=config), cli.address)[1], "configuration in force")
    assert (found.level, words in found.found) == ("warning", True)


def test_numbers_that_are_found_at_the_start_are_not_compared(tmp_path: Path, cli: Cli) -> None:
    config = dataclasses.replace(cli.plane.config, processors=0)
    assert one(ask(around(tmp_path, config=config), cli.address)[1], "configuration in force").level == "ok"
    assert one(ask(around(tmp_path, config=dataclasses.replace(config, processors=63)), cli.address)[1], "configuration in force").level == "warning"


def test_another_upstream_is_told(tmp_path: Path, cli: Cli) -> None:
    config = dataclasses.replace(cli.plane.config, upstreams=config_of().upstreams)
    assert "upstreams is" in one(ask(around(tmp_path, config=config), cli.address)[1], "configuration in force").found


def test_what_it_warns_of_itself_is_told(tmp_path: Path, cli: Cli) -> None:
    certificate = CertificateStatus(
        owner="listener/kafka", use="certificate", file="/t.crt", position=0, subject="CN=x", names=(), issuer="CN=y", serial="1", fingerprint="f",
        begins=0.0, ends=1.0, store=1, loaded_ns=0, error="",
    )  # fmt: skip
    cli.plane.certificates.append(certificate)
    _, found = ask(around(tmp_path), cli.address)
    assert [item.found for item in found if item.level == "warning" and "certificate" in item.found] == [
        "the certificate of listener/kafka has ended"
    ]
