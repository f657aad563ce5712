import asyncio
import subprocess
import sys
from pathlib import Path

from framegate.control.serve import EXIT_CONFIGURATION, _until


def test_a_faulty_configuration_is_told_line_by_line_and_nothing_starts(tmp_path: Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text("node: a/b\nlisteners: []\n")
    done = subprocess.run(
        [sys.executable, "-m", "framegate.control.serve", "--config", str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (EXIT_CONFIGURATION, "")
    assert sorted(line.split(": ")[2].split(" = ")[0] for line in done.stderr.splitlines()) == ["listeners", "node", "upstreams"]


def test_what_an_event_cuts_off_is_told_before_it_is_cancelled() -> None:
    """The processors are killed first: what waits for their end has not to wait."""

    async def scenario() -> None:
        seen: list[str] = []
        event = asyncio.Event()

        async def work() -> None:
            try:
                event.set()
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

        assert await _until(work(), event, lambda: seen.append("told")) is None
        assert seen == ["told", "cancelled"]

    asyncio.run(scenario())
