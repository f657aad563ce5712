import pathlib

import pytest

from control.configuration.fault import ConfigurationError
from control.configuration.load import examine, load, validate

GOOD = """\
node: edge-1
admin: {address: "unix:admin.sock"}
listeners:
  - {name: plain, address: "127.0.0.1:0", upstream: echo, timeouts: {idle: 1m}}
upstreams:
  - {name: echo, endpoints: ["127.0.0.1:9"]}
tap: {directory: tap}
"""
FIVE = """\
node: edge-1
listeners:
  - name: plain
    address: 127.0.0.1:70000
    max_receive_size: 1GB5
    upstream: eccho
    timeouts: {idle: forever}
upstreams:
  - name: echo
    endpoint: ["127.0.0.1:9"]
    endpoints: ["127.0.0.1:9"]
admin: {address: "unix:admin.sock"}
"""


def test_a_good_file_becomes_the_model(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text(GOOD)
    config = load(path)
    assert examine(path).faults == []
    assert config.admin.address == f"unix:{tmp_path}/admin.sock"
    assert config.tap is not None
    assert config.tap.directory == f"{tmp_path}/tap"
    assert config.listeners[0].timeouts.idle_ms == 60_000


def test_five_faults_are_named_at_once_with_line_key_value_and_reason(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text(FIVE)
    assert [(fault.line, fault.key, fault.value) for fault in examine(path).faults] == [
        (4, "listeners[0].address", "127.0.0.1:70000"),
        (5, "listeners[0].max_receive_size", "1GB5"),
        (6, "listeners[0].upstream", "eccho"),
        (7, "listeners[0].timeouts.idle", "forever"),
        (10, "upstreams[0].endpoint", ""),
    ]
    assert all(fault.reason for fault in examine(path).faults)
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert caught.value.faults == examine(path).faults


def test_a_file_that_is_not_there_is_one_fault(tmp_path: pathlib.Path) -> None:
    (fault,) = examine(tmp_path / "none.yaml").faults
    assert "No such file" in fault.reason


def test_a_mapping_is_validated_like_a_file() -> None:
    with pytest.raises(ConfigurationError, match="node: is required"):
        validate({"listeners": [], "upstreams": []})


def test_what_only_this_machine_does_not_give_leaves_a_model_that_nothing_starts_with(tmp_path: pathlib.Path) -> None:
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
    path.write_text(FIVE)
    assert examine(path).model is None
