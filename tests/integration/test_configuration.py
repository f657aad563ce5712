"""A configuration with five faults: all of them, from check and from serve."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.framegate import ROOT

FIVE = """\
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
"""


def framegate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "control.cli", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.slow
def test_every_fault_is_named_with_line_key_value_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text(FIVE)
    faults = [
        ("4", "listeners[0].address", "127.0.0.1:70000", "port '70000' is not a number"),
        ("5", "listeners[0].max_receive_size", "1GB5", "is not a size"),
        ("6", "listeners[0].upstream", "eccho", "there are: echo"),
        ("7", "listeners[0].tls.certificate", "none.crt", "cannot be read: No such file or directory"),
        ("7", "listeners[0].tls.key", "none.key", "cannot be read: No such file or directory"),
        ("8", "listeners[0].timeouts.idle", "forever", "is not a time"),
    ]
    checked = framegate("check", "--config", str(path), "--output", "json")
    served = framegate("serve", "--config", str(path))
    assert checked.returncode == served.returncode == 2
    assert served.stdout == ""
    for words in faults:
        assert all(word in checked.stdout for word in words), words
        assert any(all(word in line for word in words) for line in served.stderr.splitlines()), words
    assert len(served.stderr.splitlines()) == len(faults)
