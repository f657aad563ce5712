"""The last line of a run of tests says what was not shown, and why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="needs Maven")
@pytest.mark.parametrize("number", [1, 2])
def test_skipped(number): pass

def test_skipped_inside(): pytest.skip("no mount namespaces here")

def test_good(): pass
"""


def run(folder: Path, *words: str) -> list[str]:
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider", *words, str(folder / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_what_was_skipped_is_the_last_line(tmp_path: Path) -> None:
    assert run(tmp_path)[-1] == "framegate: not shown: 2 tests: needs Maven; 1 test: no mount namespaces here"


@pytest.mark.extended
def test_several_workers_say_it_once(tmp_path: Path) -> None:
    lines = run(tmp_path, "-n", "2")
    assert [line for line in lines if "not shown" in line] == lines[-1:]
    assert "2 tests: needs Maven" in lines[-1]
