"""The systemd unit and the compose example: what they say of framegate is what framegate is."""

import configparser
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from framegate.control.cli.options import DEFAULT_ADDRESS
from framegate.control.configuration.units import parse_duration_ms
from framegate.control.notify import STOP_MARGIN_MS
from framegate.control.serve import EXIT_CONFIGURATION
from framegate.proxy.config.model import DrainConfig

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "framegate.service"
PROGRAM = "/opt/framegate/bin/framegate"
EXPOSED = 20  # Tenths, as ``systemd-analyze security`` counts them: below 2.0 of 10
analyzed = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


class Unit(configparser.ConfigParser):
    """Keys as they are written; of one that is there twice, the last."""

    def __init__(self) -> None:
        super().__init__(strict=False, interpolation=None)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read(UNIT)


@pytest.fixture
def service() -> configparser.SectionProxy:
    return Unit()["Service"]


@pytest.fixture
def composed() -> dict[str, object]:
    loaded: dict[str, dict[str, dict[str, object]]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded["services"]["framegate"]


def test_the_manager_is_told_and_waits_longer_than_a_drain_takes(service: configparser.SectionProxy) -> None:
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"]) * 1000 >= DrainConfig().timeout_ms + STOP_MARGIN_MS
    assert service["KillMode"] == "mixed"
    assert int(service["WatchdogSec"]) > 0


def test_a_fault_of_the_configuration_is_not_tried_again(service: configparser.SectionProxy) -> None:
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", str(EXIT_CONFIGURATION))


def test_the_socket_lies_where_the_command_line_asks_and_only_its_user_comes_in(service: configparser.SectionProxy) -> None:
    assert f"FRAMEGATE_ADDRESS={DEFAULT_ADDRESS}" in service["Environment"]
    assert f"unix:/run/{service['RuntimeDirectory']}/admin.sock" == DEFAULT_ADDRESS
    assert service["RuntimeDirectoryMode"] == "0700"
    assert service["ExecStart"].split()[:2] == [PROGRAM, "serve"]


@analyzed
def test_systemd_is_content_with_the_unit(tmp_path: Path) -> None:
    """It also looks for the program, which is not installed here."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])


@analyzed
def test_the_unit_leaves_little_exposed() -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSED}", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout


def test_the_composed_container_may_no_more_than_the_sidecar(composed: dict[str, object]) -> None:
    assert (composed["read_only"], composed["cap_drop"], composed["user"]) == (True, ["ALL"], "10001:10001")
    assert composed["security_opt"] == ["no-new-privileges:true"]
    with open(DEPLOY.parent / "pyproject.toml", "rb") as file:
        assert composed["image"] == f"localhost/framegate:{tomllib.load(file)['project']['version']}"


def test_the_composed_container_drains_and_is_asked_without_a_shell(composed: dict[str, object]) -> None:
    assert parse_duration_ms(str(composed["stop_grace_period"])) >= DrainConfig().timeout_ms + STOP_MARGIN_MS
    check = composed["healthcheck"]
    assert isinstance(check, dict)
    assert check["test"] == ["CMD", PROGRAM, "status"]


def test_folders_are_mounted_never_single_files(composed: dict[str, object]) -> None:
    mounts = composed["volumes"]
    assert isinstance(mounts, list)
    assert all("." not in Path(item.split(":")[1]).name for item in mounts)
