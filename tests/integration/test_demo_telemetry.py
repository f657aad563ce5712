"""``make dashboards`` as it is run, in short: two of its troubles, through a real collector and a real Prometheus, drawn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo.dashboards import SEEN_S
from tests.demo.environment import find

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "tests" / "demo"), "dashboards"]
MISSING = [*find().missing(), *filter(None, [find().no_collector()])]


def run(*words: str, timeout: float = 380.0, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=ROOT, capture_output=True, text=True, timeout=timeout, env={**os.environ, **variables}, check=False)


@pytest.mark.extended
@pytest.mark.slow  # a trouble takes a minute until its alert has fired and ended; a picture three seconds
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))
def test_troubles_are_said_by_panel_status_and_alert_panels_have_data_and_both_ways_the_same_series(tmp_path: Path) -> None:
    options = ["--directory", str(tmp_path / "demo"), "--pictures", str(tmp_path / "pictures")]
    done = run(*options, "--trouble", "oversized-frames", "--trouble", "half-gone")
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "pictures" / "troubles.json").read_text())
    assert written["phases"].keys() == {"calm", "oversized-frames", "half-gone"}
    assert all(phase["seen_s"] <= SEEN_S for name, phase in written["phases"].items() if name != "calm")
    assert written["series"]["both"] > 500
    drawn = sorted(picture.name for picture in (tmp_path / "pictures").glob("*.png"))
    assert len(drawn) == (0 if find().no_pictures() else 8)
    assert ("pictures: not drawn" in done.stdout) == bool(find().no_pictures())


@pytest.mark.slow  # starts Python twice
def test_what_is_missing_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    done = run("--directory", str(tmp_path / "demo"), PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "framegate demo: Prometheus (prometheus) is neither on PATH nor in the cache: make dashboards gets it\n"
    assert not (tmp_path / "demo").exists()
