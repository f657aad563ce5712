"""framegate as process 1 of a container: a read-only root, a user without a name or a home, signals at any moment, orphans."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.waiting import until

USER = 10001
PREPARE = """
set -e
mount --make-rprivate /
if [ "$(stat -c %a /root)" != 755 ]; then  # the interpreter may lie there, which a user without rights cannot pass
    keep=$(mktemp -d); mount --bind /root "$keep"; mount -t tmpfs -o mode=755 tmpfs /root
    for path in "$keep"/.[!.]* ; do [ -d "$path" ] && mkdir "/root/${path##*/}" && mount --bind "$path" "/root/${path##*/}"; done
fi
mount -t tmpfs tmpfs /tmp -o mode=755
mkdir /tmp/etc /tmp/run /tmp/tap
printf %s "$1" > /tmp/etc/framegate.yaml
chown "$2" /tmp/run /tmp/tap; chmod "$3" /tmp/run /tmp/tap
mount --bind /tmp/run /tmp/run; mount --bind /tmp/tap /tmp/tap
mount -o remount,bind,ro /tmp; mount -o remount,bind,ro /; mount -o remount,bind,ro /dev/shm
cd /
exec setpriv --reuid 10001 --regid 10001 --groups "$4" --no-new-privs --bounding-set=-all \\
    env -i PYTHONPATH="$5" PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 "$6" -m framegate.control.cli serve --config /tmp/etc/framegate.yaml
"""
CONFIG: dict[str, Any] = {
    "node": "n",
    "processors": 1,
    "admin": {"address": "unix:/tmp/run/admin.sock"},
    "memory_pool": {"size": "8MiB"},
    "tap": {"directory": "/tmp/tap", "rules": [{"name": "all"}]},
    "drain": {"timeout": "2s"},
    "listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "nobody", "max_receive_size": "1MiB"}],
    "upstreams": [{"name": "nobody", "endpoints": ["127.0.0.1:9"]}],
}


def why_not() -> str:
    """Why there can be no namespaces here; empty when there can."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "nsenter"))):
        return "needs root, unshare, setpriv and nsenter"
    done = subprocess.run(["unshare", "-m", "-p", "-f", "--mount-proc", "mount", "--make-rprivate", "/"], capture_output=True, text=True, check=False)
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Contained:
    """It, in namespaces of its own. Attributes: ``pid``, from outside."""

    def __init__(self, owner: str = f"{USER}:{USER}", mode: str = "700", groups: str = str(USER)) -> None:
        words = ["sh", "-c", PREPARE, "sh", json.dumps(CONFIG), owner, mode, groups, os.environ.get("PYTHONPATH", ""), sys.executable]
        self.process = subprocess.Popen(
            ["unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        """Of process 1, once it is framegate."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.process.poll() is None:
            for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                with contextlib.suppress(OSError):
                    if (
                        b"framegate.control.cli\0serve" in Path(f"/proc/{child}/cmdline").read_bytes()
                        and Path(f"/proc/{child}/comm").read_text() != "env\n"
                    ):
                        return int(child)
            time.sleep(0.002)
        raise AssertionError(f"framegate did not come: {self.process.communicate()}")

    def wait_for(self, event: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if json.loads(line)["event"] == event:
                return
        raise AssertionError(f"it ended without {event}: {self.process.stderr and self.process.stderr.read()}")

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Another command in the same namespaces, as ``kubectl exec``."""
        return subprocess.run(["nsenter", "-t", str(self.pid), "-m", "-p", *words], capture_output=True, text=True, timeout=20, check=False)

    def end(self) -> tuple[int, str, str]:
        """SIGTERM to process 1; the exit code, and what it wrote."""
        os.kill(self.pid, signal.SIGTERM)
        out, errors = self.process.communicate(timeout=20)
        return self.process.returncode, out, errors


@contextlib.contextmanager
def contained(**options: str) -> Iterator[Contained]:
    made = Contained(**options)
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):  # process 1 itself: setpriv has taken from it the signal of its parent's end
            for child in Path(f"/proc/{made.process.pid}/task/{made.process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        made.process.kill()
        made.process.communicate(timeout=20)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("owner", "mode"), [(f"{USER}:{USER}", "700"), ("0:10001", "2770")])
def test_a_user_without_a_name_needs_no_folder_but_its_own_and_a_group_will_do(owner: str, mode: str) -> None:
    with contained(owner=owner, mode=mode) as made:
        made.wait_for("serving")
        for folder in ("/", "/tmp", "/dev/shm"):  # so nothing was written there, and no search of the whole disk is needed to show it
            assert "Read-only file system" in made.run("touch", f"{folder}/x").stderr
        assert set(made.run("ls", "-A", "/tmp/run").stdout.split()) == {"admin.sock", "admin.sock.lock"}
        code, _, errors = made.end()
        assert (code, errors) == (0, "")


def test_a_volume_of_somebody_else_is_a_fault_that_says_what_to_do() -> None:
    with contained(owner="4711:4711", mode="755") as made:
        out, errors = made.process.communicate(timeout=20)
        assert (made.process.returncode, out) == (2, "")
        assert "it is of user 4711 and group 4711, mode 0755, and framegate is user 10001 of the groups 10001" in errors
        assert "securityContext.fsGroup" in errors


@pytest.mark.slow
def test_sigterm_before_it_is_ready_is_not_lost() -> None:
    """The kernel keeps signals without a handler from process 1, unless they are blocked. At two moments of the start."""
    for delay_s in (0.0, 0.2):
        with contained() as made:
            pid = made.pid
            while not has_sigterm(pid, "SigBlk"):
                assert not has_sigterm(pid, "SigCgt"), "it has a handler now, and until then SIGTERM was lost"
                time.sleep(0.001)
            time.sleep(delay_s)
            code, _, errors = made.end()
            assert (code, errors) == (0, ""), delay_s


def has_sigterm(pid: int, mask: str) -> bool:
    """Whether SIGTERM is in one of a process' masks: blocked, or caught."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition(f"{mask}:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
def test_orphans_are_reaped_and_a_second_signal_ends_it_at_once() -> None:
    with contained() as made:
        made.wait_for("serving")
        made.run("sh", "-c", "(sleep 0.1 &)")
        children = Path(f"/proc/{made.pid}/task/{made.pid}/children")
        until(lambda: len(children.read_text().split()) == 1, "the processor; no zombie")
        pid = made.pid
        os.kill(pid, signal.SIGSTOP)  # so that both wait for it
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGCONT)
        out, _ = made.process.communicate(timeout=20)
        assert (made.process.returncode, json.loads(out.splitlines()[-1])["reason"]) == (1, "forced")
