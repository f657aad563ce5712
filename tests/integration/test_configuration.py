"""A configuration with faults: all of them, from check and from serve, in the same words; and a check beside a framegate that runs."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate, Witness, run_cli

FAULTY = """\
node: edge-1
listeners:
  - name: plain
    address: 127.0.0.1:70000
    max_receive_size: 1GB5
    upstream: eccho
    tls: {certificate: none.crt, key: none.key}
    timeouts: {idle: forever}
upstreams:
  - name: echo
    endpoints: ["127.0.0.1:9"]
admin: {address: "unix:admin.sock"}
"""


def both_refuse(path: Path) -> tuple["subprocess.CompletedProcess[str]", "subprocess.CompletedProcess[str]"]:
    """What check and serve say."""
    checked, served = run_cli("check", "--config", str(path), "--output", "json"), run_cli("serve", "--config", str(path))
    assert (checked.returncode, served.returncode, served.stdout) == (2, 2, "")
    return checked, served


@pytest.mark.slow
def test_every_fault_is_named_with_line_key_value_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text(FAULTY)
    faults = [
        ("4", "listeners[0].address", "127.0.0.1:70000", "port '70000' is not a number"),
        ("5", "listeners[0].max_receive_size", "1GB5", "is not a size"),
        ("6", "listeners[0].upstream", "eccho", "there are: echo"),
        ("7", "listeners[0].tls.certificate", "none.crt", "cannot be read: No such file or directory"),
        ("7", "listeners[0].tls.key", "none.key", "cannot be read: No such file or directory"),
        ("8", "listeners[0].timeouts.idle", "forever", "is not a time"),
    ]
    checked, served = both_refuse(path)
    for words in faults:
        assert all(word in checked.stdout for word in words), words
        assert any(all(word in line for word in words) for line in served.stderr.splitlines()), words
    assert len(served.stderr.splitlines()) == len(faults)


@pytest.mark.slow
def test_what_runs_can_be_checked_and_is_not_disturbed(tmp_path: Path, plain: dict[str, Any]) -> None:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{chosen.getsockname()[1]}"
    listeners = [{**plain["listeners"][0], "address": address, "backlog": 65535}]
    tap = {"directory": "tap", "budget": "128MiB", "rules": [{"name": "all"}]}
    with Framegate(tmp_path, {**plain, "listeners": listeners, "tap": tap}) as proxy, Witness(proxy, "plain") as witness:
        checked = run_cli("check", "--config", str(tmp_path / "framegate.yaml"), "--output", "json")
        witness.check()
        warned = proxy.wait_row(lambda row: row["event"] == "configuration_warning")
    rows = json.loads(checked.stdout)
    assert (checked.returncode, {row["level"] for row in rows}) == (0, {"warning"})
    assert {row["key"] for row in rows if row["reason"].startswith("is in use now")} == {"admin.address", "listeners[0].address", "tap.directory"}
    assert (warned["level"], warned["key"]) == ("warning", "listeners[0].backlog")
    assert not any("in use" in str(row.get("reason")) for row in proxy.rows)
