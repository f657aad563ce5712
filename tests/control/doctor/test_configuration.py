import json
from pathlib import Path

import pytest

from control.configuration.load import examine
from control.doctor.configuration import area_of, look
from tests.fakes.surroundings import levels

GOOD = {
    "node": "n",
    "listeners": [{"name": "in", "address": "127.0.0.1:0", "upstream": "up"}],
    "upstreams": [{"name": "up", "endpoints": ["127.0.0.1:1"]}],
}


def test_what_check_finds_is_told_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(json.dumps({**GOOD, "colour": "red", "tap": {"directory": "/proc/x"}}, indent=1))
    found = list(look(path, examine(path)))
    assert [(item.area, item.level, item.subject) for item in found] == [
        ("configuration", "fault", "colour"),
        ("disk", "fault", "tap.directory = /proc/x"),
        ("configuration", "fault", str(path)),
    ]
    assert found[0].advice.startswith(f"change line 18 of {path}")
    assert found[2].advice == f"framegate check --config {path}"


def test_a_good_one_is_good_and_its_warnings_are_warnings(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(json.dumps(GOOD))
    assert levels(look(path, examine(path))) == ["ok"]
    path.write_text(json.dumps({**GOOD, "upstreams": [*GOOD["upstreams"], {"name": "spare", "endpoints": ["127.0.0.1:2"]}]}))
    assert levels(look(path, examine(path))) == ["warning", "ok"]


def test_a_good_one_that_this_machine_cannot_run_is_valid_and_its_faults_are_faults(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(json.dumps({**GOOD, "tap": {"directory": "/proc/x"}}))
    assert levels(look(path, examine(path))) == ["fault", "ok"]


def test_without_a_file_that_is_said(tmp_path: Path) -> None:
    (found,) = look(None, examine(tmp_path))
    assert (found.level, "framegate doctor --config FILE" in found.advice) == ("unknown", True)


@pytest.mark.parametrize(
    ("key", "area"),
    [
        ("listeners[0].tls.key", "certificates"),
        ("upstreams[1].tls.ca", "certificates"),
        ("listeners[0].backlog", "kernel"),
        ("upstreams[0].socket.send_buffer", "kernel"),
        ("memory_pool.size", "memory"),
        ("tap.directory", "disk"),
        ("tap.budget", "disk"),
        ("tap.rules[0].name", "configuration"),
        ("admin.address", "permissions"),
        ("", "configuration"),
    ],
)
def test_each_key_has_an_area(key: str, area: str) -> None:
    assert area_of(key) == area
