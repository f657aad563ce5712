"""What the run starts: its configurations have no fault, and what does not start is said with its last words."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from control.configuration.load import validate
from control.demo.processes import ChildError
from control.demo.stage import Stage
from control.demo.telemetry import scene
from control.demo.workspace import Workspace


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(Workspace(tmp_path / "demo")) as made:
        yield made


@pytest.mark.slow  # salts a password
def test_both_framegates_are_configured_without_a_fault(stage: Stage) -> None:
    upstream = validate(scene._upstream(stage, 4317))
    proxy = validate(scene._proxy(stage, 4317, {"demo": "9001", "kafka": "9002"}))
    assert [listener.name for listener in proxy.listeners] == ["demo", "partners", "kafka"]
    assert {config.telemetry.otlp.endpoint for config in (upstream, proxy) if config.telemetry.otlp} == {"http://127.0.0.1:4317"}
    assert validate(scene._proxy(stage, 0, {"demo": "9001", "kafka": "9002"})).telemetry.otlp is None, "no collector: scrapes only"
    assert proxy.tap is not None
    assert proxy.tap.budget < scene.TAP_MIB * scene.MIB, "the disk, not the budget, is what is full"
    assert (stage.workspace.certificates / "password").stat().st_mode & 0o777 == 0o600


def test_free_ports_are_different(stage: Stage) -> None:
    assert len(set(scene._free_ports(4))) == 4


def test_a_program_that_ends_is_said_with_its_last_words(stage: Stage) -> None:
    child = stage.start("collector", ["sh", "-c", "echo the port is taken >&2; exit 1"])
    child.wait(10)
    with pytest.raises(ChildError, match="collector did not start: the port is taken"):
        scene._until(child, 60, lambda: False)


def test_a_program_that_is_not_ready_in_time_is_said(stage: Stage) -> None:
    child = stage.start("prometheus", ["sleep", "60"])
    with pytest.raises(ChildError, match="prometheus did not start"):
        scene._until(child, 0.0, lambda: False)
    scene._until(child, 0.0, lambda: True)
