"""``framegate demo`` as a user runs it: from the certificates to the report, with every count equal and every act seen."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from framegate.control.demo.processes import find_java
from tests.fakes.waiting import until

COMMAND = [sys.executable, "-c", "import sys; from framegate.control.cli import main; sys.exit(main())", "demo"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_java() is None and not os.environ.get("CI"), reason="Spark needs Java"),
]


def with_mark(mark: str) -> list[str]:
    """The command lines of the processes that have this in their environment: whatever a demo started, wherever it hangs now."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes() and (process / "cmdline").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.extended
@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_a_signal_leaves_no_process_and_no_temporary_folder(tmp_path: Path, number: int, word: str) -> None:
    mark = f"FRAMEGATE_TEST_MARK={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    before = set(Path("/tmp").glob("framegate-spark-*"))
    demo = subprocess.Popen(
        [*COMMAND, "--directory", str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, name: value, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("waiting for Spark's first batch"):
            break
    started = with_mark(mark)
    assert any("org.apache.spark" in command for command in started), started
    os.kill(demo.pid, number)
    _, said = demo.communicate(timeout=60)
    assert (demo.returncode, said) == (128 + number, f"framegate demo: {word}\n")
    until(lambda: not with_mark(mark), "a process is left", 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    mine = [path for path in set(Path("/tmp").glob("framegate-spark-*")) - before if not Path("/proc", path.name.split("-")[2]).exists()]
    assert mine == []


@pytest.mark.extended
def test_a_short_demo_ends_with_everything_equal_and_seen(tmp_path: Path) -> None:
    options = ["--seconds", "5", "--rate", "2000", "--connections", "8", "--directory", str(tmp_path / "demo")]
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=380, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, [line for line in lines if line.startswith("WRONG")]) == (0, []), done.stdout + done.stderr
    assert lines[-1] == "RESULT: everything equal, everything seen"
    assert len([line for line in lines if line.startswith("ok ")]) == 17
    for act in ("maxReceiveSize lowered", "one connection muted", "memory pool shrunk"):
        assert any(line.startswith(f"  * {act}") for line in lines)
    assert (tmp_path / "demo" / "tables" / "frames").is_dir()
    assert not any(path.suffix == ".sock" for path in (tmp_path / "demo").iterdir())
