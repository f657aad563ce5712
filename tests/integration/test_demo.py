"""``framegate demo`` as a user runs it: from the certificates to the report, with every count equal and every act seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from control.demo.java import find_java

COMMAND = [sys.executable, "-c", "import sys; from control.cli import main; sys.exit(main())", "demo"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_java() is None and not os.environ.get("CI"), reason="Spark needs Java"),
]


def test_a_short_demo_ends_with_everything_equal_and_seen(tmp_path: Path) -> None:
    options = ["--seconds", "5", "--rate", "2000", "--connections", "8", "--directory", str(tmp_path / "demo")]
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=380, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, [line for line in lines if line.startswith("WRONG")]) == (0, []), done.stdout + done.stderr
    assert lines[-1] == "RESULT: everything equal, everything seen"
    assert len([line for line in lines if line.startswith("ok ")]) == 15
    for act in ("maxReceiveSize lowered", "one connection muted", "memory pool shrunk"):
        assert any(line.startswith(f"  * {act}") for line in lines)
    assert (tmp_path / "demo" / "tables" / "frames").is_dir()
    assert not any(path.suffix == ".sock" for path in (tmp_path / "demo").iterdir())
