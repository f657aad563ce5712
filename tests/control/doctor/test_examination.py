"""All areas together, and their order."""

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from framegate.control.configuration.load import examine as examine_file
from framegate.control.doctor import examination
from framegate.control.doctor.examination import Examination, area_of, checked, examine_all
from framegate.control.doctor.finding import AREAS, Finding
from framegate.control.doctor.surroundings import Surroundings
from tests.fakes.certificates import YEAR, Authority
from tests.fakes.surroundings import around, levels, one
from tests.fakes.upstream import ScriptedUpstream

GOOD: dict[str, Any] = {
    "node": "n",
    "listeners": [{"name": "in", "address": "127.0.0.1:0", "upstream": "up"}],
    "upstreams": [{"name": "up", "endpoints": ["127.0.0.1:1"]}],
}


def write(folder: Path, **keys: Any) -> Path:
    small = {"admin": {"address": f"unix:{folder}/admin.sock"}, "processors": 1, "listeners": [{**GOOD["listeners"][0], "max_receive_size": "1MiB"}]}
    (folder / "f.yaml").write_text(json.dumps({**GOOD, **small, **keys}))
    return folder / "f.yaml"


def examine(path: Path | None, at: Surroundings | None = None, address: str | None = None) -> Examination:
    return examine_all(at or Surroundings(), path, address, default="unix:/nowhere/default.sock", why=lambda text: "why", version="1")


def test_every_area_says_something_with_a_configuration_and_without(tmp_path: Path) -> None:
    for path in (write(tmp_path), None):
        assert {item.area for item in examine(path).findings} == set(AREAS)


def test_the_address_that_is_asked_is_the_callers_or_the_files_or_the_default(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert examine(path).address == f"unix:{tmp_path}/admin.sock"
    assert examine(path, address="unix:/other.sock").address == "unix:/other.sock"
    assert examine(None).address == "unix:/nowhere/default.sock"
    assert one(examine(path).findings, "control plane").found.startswith(f"no framegate answers at unix:{tmp_path}/admin.sock: why")


def test_with_a_file_that_is_not_yaml_areas_that_need_no_file_are_examined(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("listeners: [")
    found = examine(tmp_path / "f.yaml").findings
    assert [item.subject for item in found if item.level == "fault"] == ["the document", str(tmp_path / "f.yaml")]
    assert {item.area for item in found} == set(AREAS)


def test_behind_wrong_values_the_rest_of_the_file_is_examined(tmp_path: Path) -> None:
    (good,) = GOOD["listeners"]
    cases: dict[str, tuple[dict[str, Any], set[str]]] = {
        "an unknown key": ({"colour": "red"}, {"up"}),
        "a wrong value": ({"listeners": [{**good, "max_receive_size": "lots"}]}, {"up"}),
        "a listener that names no upstream, and no other": ({"listeners": [{**good, "upstream": "none"}], "node": "a b"}, {"up"}),
        "an entry without two keys beside a good one": ({"listeners": [{"name": "a"}, good, {"name": "b", "upstream": "none"}]}, {"up"}),
        "an upstream without endpoints, and the listener in front of it": (
            {
                "listeners": [good, {**good, "name": "second", "address": "127.0.0.1:9", "upstream": "bad"}],
                "upstreams": [*GOOD["upstreams"], {"name": "bad"}],
            },
            {"up"},
        ),
        "nothing that is right": ({"node": "", "listeners": 7, "upstreams": 7}, set()),
    }
    for name, (keys, upstreams) in cases.items():
        found = examine(write(tmp_path, **keys)).findings
        assert any(item.level == "fault" and item.area == "configuration" for item in found), name
        tried = {item.subject.partition(",")[0] for item in found if item.area == "upstreams" and item.level == "fault"}
        assert tried == upstreams, (name, found)
        assert not any(item.subject == "configuration in force" for item in found), name


def test_where_only_this_machine_is_at_fault_everything_is_looked_at(tmp_path: Path) -> None:
    """A folder that cannot be written is reported once."""
    upstream = ScriptedUpstream()
    path = write(tmp_path, upstreams=[{"name": "up", "endpoints": [upstream.address]}], tap={"directory": str(tmp_path / "file" / "tap")})
    (tmp_path / "file").touch()
    found = examine(path).findings
    upstream.close()
    assert [item.subject.split(" = ")[0] for item in found if item.level == "fault"] == ["tap.directory"]
    assert one(found, f"up, {upstream.address}").level == "ok"
    assert one(found, str(path)).found == "is valid, and this machine does not give what it needs"


def test_a_certificate_that_has_ended_is_reported_once(tmp_path: Path) -> None:
    """``check`` has it as a warning, the validator as a fault with more words."""
    certificate, key = Authority(tmp_path).leaf("server", lifetime=(-YEAR, -YEAR / 365))
    listener = {"name": "in", "address": "127.0.0.1:0", "upstream": "up", "tls": {"certificate": certificate, "key": key}}
    path = write(tmp_path, listeners=[listener])
    told = [item for item in examine(path).findings if "expired on" in item.found]
    assert [(item.area, item.level) for item in told] == [("certificates", "fault")]


def test_an_upstream_is_tried_at_the_address_of_its_name(tmp_path: Path) -> None:
    upstream = ScriptedUpstream()
    path = write(tmp_path, upstreams=[{"name": "up", "endpoints": [f"localhost:{upstream.port}"]}])
    found = examine(path).findings
    upstream.close()
    assert one(found, "localhost (upstream up)").level == "ok"
    assert one(found, f"up, 127.0.0.1:{upstream.port}").level == "ok"


def test_an_address_in_use_is_a_warning_if_no_framegate_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path = write(tmp_path, listeners=[{"name": "in", "address": address, "upstream": "up"}])
        assert levels([one(examine(path).findings, "listeners[0].address")]) == ["warning"]


def test_a_file_that_hangs_costs_half_of_the_time_and_the_rest_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file server that no longer answers."""
    never = threading.Event()
    monkeypatch.setattr(examination, "examine", lambda path, in_use: never.wait(30))
    begun = time.monotonic()
    found = examine(write(tmp_path), Surroundings(timeout_s=0.2)).findings
    assert time.monotonic() - begun < 10
    never.set()
    told = one(found, str(tmp_path / "f.yaml"))
    assert (told.level, told.found) == ("fault", "did not answer within 0.1 s")
    assert {item.area for item in found} == set(AREAS)


def test_an_area_that_raises_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_(around: Surroundings) -> list[Finding]:
        raise ValueError("broken")

    areas = [(area, subject, break_ if area == "disk" else look) for area, subject, look in examination._AREAS]
    monkeypatch.setattr(examination, "_AREAS", areas)
    found = examine(None).findings
    assert "a fault of `framegate doctor` itself" in one(found, "the tap's disk").found
    assert {item.area for item in found} == set(AREAS)


def test_a_system_without_readable_files_is_unknown_in_each_area(tmp_path: Path) -> None:
    """Nothing of it is left out, and nothing is a fault."""
    path = write(tmp_path)
    found = examine(path, around(tmp_path / "empty"))
    unknown = {item.area for item in found.findings if item.level == "unknown"}
    assert unknown >= {"limits", "memory", "names", "kernel", "permissions", "running"}
    assert not any("a fault of `framegate doctor` itself" in item.found for item in found.findings)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "tap").mkdir()
    path = write(tmp_path, tap={"directory": str(tmp_path / "tap")})
    before = sorted(os.listdir(tmp_path))
    examine(path)
    assert (sorted(os.listdir(tmp_path)), os.listdir(tmp_path / "tap")) == (before, [])


def checks(folder: Path, **keys: Any) -> list[Finding]:
    path = folder / "f.yaml"
    path.write_text(json.dumps({**GOOD, **keys}, indent=1))
    return list(checked(path, examine_file(path)))


def test_what_check_finds_is_in_its_area_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    found = checks(tmp_path, colour="red", tap={"directory": "/proc/x"})
    assert [(item.area, item.level, item.subject) for item in found] == [
        ("configuration", "fault", "colour"),
        ("disk", "fault", "tap.directory = /proc/x"),
        ("configuration", "fault", str(path)),
    ]
    assert found[0].advice.startswith(f"correct line 18 of {path}")
    assert found[2].advice == f"framegate check --config {path}"
    assert levels(checks(tmp_path)) == ["ok"]
    assert levels(checks(tmp_path, upstreams=[*GOOD["upstreams"], {"name": "spare", "endpoints": ["127.0.0.1:2"]}])) == ["warning", "ok"]
    assert levels(checks(tmp_path, tap={"directory": "/proc/x"})) == ["fault", "ok"], "the file is valid"
    (none,) = checked(None, examine_file(tmp_path))
    assert (none.level, "framegate doctor --config FILE" in none.advice) == ("unknown", True)


def test_a_key_that_everybody_may_read_is_a_warning_about_permissions(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).leaf("server")
    os.chmod(key, 0o644)
    found = one(checks(tmp_path, listeners=[{**GOOD["listeners"][0], "tls": {"certificate": certificate, "key": key}}]), "tls.key")
    assert (found.area, found.level, found.found.partition(";")[0]) == (
        "permissions", "warning", "can be read or written by everybody on this machine",
    )  # fmt: skip


def test_each_key_has_an_area() -> None:
    areas = {
        "listeners[0].tls.key": "certificates",
        "upstreams[1].tls.ca": "certificates",
        "listeners[0].backlog": "kernel",
        "upstreams[0].socket.send_buffer": "kernel",
        "memory_pool.size": "memory",
        "tap.directory": "disk",
        "tap.budget": "disk",
        "tap.rules[0].name": "configuration",
        "admin.address": "permissions",
        "": "configuration",
    }
    assert {key: area_of(key) for key in areas} == areas
