"""Child processes: rows, replies, ends."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from control.demo.processes import Child, ChildError

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


def start(tmp_path: Path, code: str = ECHO, **options: Any) -> Child:
    return Child("child", [sys.executable, "-c", code], tmp_path / "child.log", **options)


def test_rows_replies_and_an_orderly_end(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    child = start(tmp_path, on_row=seen.append)
    assert child.wait_for_event("listening", 10)["port"] == 7
    assert child.ask("jump")["did"] == "jump"
    child.close_input()
    assert child.wait_for_event("final", 10) == {"event": "final"}
    assert child.wait(10) == 0
    assert [row["event"] for row in seen] == ["listening", "stats", "final"]
    assert {"no json", "to stderr"} <= set(child.log.read_text().splitlines())


def test_an_end_too_early_names_the_log(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys; print('it broke', file=sys.stderr)")
    with pytest.raises(ChildError, match="it broke"):
        child.wait_for_event("listening", 10)
    child.wait(10)


def test_no_answer_is_an_error(tmp_path: Path) -> None:
    child = start(tmp_path)
    with pytest.raises(ChildError, match="did not answer mute"):
        child.ask("mute", timeout_s=0.05)
    child.close_input()
    assert child.wait(10) == 0


def test_a_process_that_is_gone_is_an_error_to_tell(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.close_input()
    child.wait(10)
    with pytest.raises(ChildError, match="is gone"):
        child.ask("jump")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has died and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_death(pid: int) -> None:
    """A signal is sent at once; when the kernel carries it out is its own affair."""
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


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
    wait_for_death(inner)


@pytest.mark.parametrize(
    ("signals", "code"),
    [("signal.signal(15, lambda *_: sys.exit(3))", 3), ("signal.signal(15, lambda *_: signal.signal(15, signal.SIG_DFL))", -15), ("", -15)],
)
def test_haste_is_sigterm_twice(tmp_path: Path, signals: str, code: int) -> None:
    body = f"import json, signal, sys, time; {signals}\nprint(json.dumps({{'event': 'up'}}), flush=True)\nwhile True: time.sleep(60)"
    child = start(tmp_path, body)
    child.wait_for_event("up", 10)
    child.end_at_once(1.0 if "SIG_DFL" in signals else 10)
    assert child.wait(0) == code


def test_what_does_not_heed_haste_is_killed(tmp_path: Path) -> None:
    child = start(
        tmp_path, "import json, signal, time; signal.signal(15, signal.SIG_IGN); print(json.dumps({'event': 'up'}), flush=True); time.sleep(60)"
    )
    child.wait_for_event("up", 10)
    child.end_at_once(0.05)
    assert child.wait(0) == -9


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part is Linux's")
def test_a_child_does_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal, sys
from control.demo.processes import Child
child = Child("inner", [sys.executable, "-c", "import json, time; print(json.dumps({{'event': 'up'}}), flush=True); time.sleep(60)"],
              pathlib.Path({str(tmp_path / "inner.log")!r}))
child.wait_for_event("up", 10)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    outer = Child("outer", [sys.executable, "-c", code], tmp_path / "outer.log", environment={"PYTHONPATH": paths})
    assert outer.wait(20) == -9
    pid = int((tmp_path / "pid").read_text())
    wait_for_death(pid)
