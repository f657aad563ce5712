"""Child processes: rows, replies, ends; and which Java is good enough."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from framegate.control.demo.processes import Child, ChildError, find_java
from tests.fakes.framegate import alive
from tests.fakes.waiting import until

ECHO = """
import json, sys
print(json.dumps({"event": "listening", "port": 7}), flush=True)
print("no json", flush=True)
print("to stderr", file=sys.stderr, flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "mute":
        continue
    print(json.dumps({"event": "stats", "sent": 1}), flush=True)
    print(json.dumps({"event": "reply", "id": command["id"], "did": command["do"]}), flush=True)
print(json.dumps({"event": "final"}), flush=True)
"""
UP = "print(json.dumps({'event': 'up'}), flush=True)"


def start(tmp_path: Path, code: str = ECHO, **options: Any) -> Child:
    return Child("child", [sys.executable, "-c", code], tmp_path / "child.log", **options)


def test_rows_replies_and_an_orderly_end(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    child = start(tmp_path, on_row=seen.append)
    assert child.wait_for_event("listening", 10)["port"] == 7
    assert child.ask("jump")["did"] == "jump"
    with pytest.raises(ChildError, match="did not answer mute"):
        child.ask("mute", timeout_s=0.05)
    child.close_input()
    assert child.wait_for_event("final", 10) == {"event": "final"}
    assert child.wait(10) == 0
    assert [row["event"] for row in seen] == ["listening", "stats", "final"]
    assert {"no json", "to stderr"} <= set(child.log.read_text().splitlines())
    with pytest.raises(ChildError, match="is gone"):
        child.ask("jump")


def test_the_error_of_a_child_that_ended_too_early_has_the_end_of_its_log(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys; print('it broke', file=sys.stderr)")
    with pytest.raises(ChildError, match="it broke"):
        child.wait_for_event("listening", 10)
    child.wait(10)


def test_what_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    code = (
        "import json, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(json.dumps({'event': 'up', 'inner': inner.pid}), flush=True); time.sleep(60)"
    )
    child = start(tmp_path, code)
    inner = child.wait_for_event("up", 10)["inner"]
    child.terminate()
    assert child.wait(0.1) == -9
    until(lambda: not alive(inner), "it lives on", 20)  # the kernel carries a signal out later


def test_a_child_that_must_end_at_once_gets_sigterm_twice_then_sigkill(tmp_path: Path) -> None:
    for handler, patience_s, code in (
        ("signal.signal(15, lambda *_: sys.exit(3))", 10, 3),
        ("signal.signal(15, lambda *_: signal.signal(15, signal.SIG_DFL))", 0.5, -15),
        ("signal.signal(15, signal.SIG_IGN)", 0.05, -9),
    ):
        child = start(tmp_path, f"import json, signal, sys, time; {handler}\n{UP}\nwhile True: time.sleep(60)")
        child.wait_for_event("up", 10)
        child.end_at_once(patience_s)
        assert child.wait(0) == code, handler


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part is Linux's")
def test_a_child_does_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal, sys
from framegate.control.demo.processes import Child
child = Child("inner", [sys.executable, "-c", "import json, time; {UP}; time.sleep(60)"], pathlib.Path({str(tmp_path / "inner.log")!r}))
child.wait_for_event("up", 10)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    outer = Child("outer", [sys.executable, "-c", code], tmp_path / "outer.log", environment={"PYTHONPATH": paths})
    assert outer.wait(20) == -9
    until(lambda: not alive(int((tmp_path / "pid").read_text())), "it lives on", 20)


def test_java_seventeen_or_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for version, good in (("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_402", False)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        java.chmod(0o755)
        assert find_java() == (str(java) if good else None), version
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() is None
