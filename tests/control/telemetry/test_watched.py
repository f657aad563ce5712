"""What the watch for problems reads, without OpenTelemetry."""

import os
import subprocess
import sys

from framegate.control.telemetry.watched import watched
from tests.fakes.plane import FakePlane


def test_it_reads_cells_the_container_certificates_processes_and_what_is_given(plane: FakePlane) -> None:
    values = watched(plane, {"listener/kafka": (4.0, 5.0)}, [lambda: {("framegate.telemetry.exports", ()): 7.0}])().points
    times = [values[f"framegate.tls.certificate.not_{when}"] for when in ("before", "after")]
    assert times == [{(("framegate.certificate", "listener/kafka"),): time_s} for time_s in (4.0, 5.0)]
    assert values["framegate.telemetry.exports"] == {(): 7.0}
    assert values["framegate.memory.limit"][()] > 0
    assert values["process.memory.usage"][(("framegate.process", "control"),)] > 0
    assert values["framegate.process.run_delay"][(("framegate.process", "control"),)] >= 0
    assert values["framegate.connection.accepted"]


def test_it_does_not_load_opentelemetry() -> None:
    program = "import sys, framegate.control.telemetry.watched; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ))
    assert done.stdout.strip() == "[]"
