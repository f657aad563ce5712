import pathlib
import socket

import pytest

from framegate.control.configuration.load import examine, judge
from framegate.control.configuration.reading import read_document

GOOD = """\
node: edge-1
admin: {address: "unix:admin.sock"}
listeners:
  - {name: plain, address: "127.0.0.1:0", upstream: echo, timeouts: {idle: 1m}}
upstreams:
  - {name: echo, endpoints: ["127.0.0.1:9"]}
tap: {directory: tap}
"""


def test_a_fault_of_this_machine_only_leaves_a_model(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text(GOOD.replace("tap: {directory: tap}", "tap: {directory: /proc/tap}"))
    found = examine(path)
    assert [fault.key for fault in found.faults] == ["tap.directory"]
    assert found.config is None
    assert found.model is not None
    assert found.model.tap is not None
    path.write_text(GOOD)
    found = examine(path)
    assert found.model == found.config is not None
    path.write_text(GOOD.replace("node:", "nodes:"))
    assert examine(path).model is None


def test_without_a_node_the_variable_or_else_the_name_of_the_host_is_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "framegate.yaml"
    monkeypatch.setattr(socket, "gethostname", lambda: "host")
    found = []
    for variable in ("", "orders-6d5f-x2x7l"):
        monkeypatch.setenv("FRAMEGATE_NODE", variable)
        for line in ("node: edge-1\n", "", 'node: ""\n'):
            path.write_text(GOOD.replace("node: edge-1\n", line))
            config = examine(path).config
            assert config is not None
            found.append(config.node)
    assert found == ["edge-1", "host", "host", "edge-1", "orders-6d5f-x2x7l", "orders-6d5f-x2x7l"]


def test_the_name_of_this_host_is_not_judged_for_another_machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "framegate.yaml"
    monkeypatch.setattr(socket, "gethostname", lambda: "x" * 64)
    found = []
    for line in ("", 'node: ""\n', f"node: {'x' * 64}\n"):
        path.write_text(GOOD.replace("node: edge-1\n", line))
        found.append([[(fault.key, fault.value[:2]) for fault in judge(read_document(path), machine=machine).faults] for machine in (True, False)])
    assert found == [[[("node", "xx")], []]] * 2 + [[[("node", "xx")]] * 2]


def test_the_zone_comes_from_the_file_or_else_from_the_environment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "framegate.yaml"
    found = []
    for variable in ("", "eu-1a"):
        monkeypatch.setenv("FRAMEGATE_ZONE", variable)
        for key in ("", "zone: b\n"):
            path.write_text(GOOD + key)
            config = examine(path).config
            assert config is not None
            found.append(config.zone)
    assert found == ["", "b", "eu-1a", "b"]
