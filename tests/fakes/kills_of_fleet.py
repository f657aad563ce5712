"""A framegate that ships to an S3 server, a job in a Spark cluster that makes tables of it, and faults of each of them, at random moments."""

import collections
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from framegate.control.cli.tap_fleet import verify_fleet
from framegate.proxy.pipeline.sql import open_tables
from tests.fakes import kills
from tests.fakes.framegate import run_cli
from tests.fakes.jobs import table
from tests.fakes.judge import Account, Key, judge
from tests.fakes.s3 import S3
from tests.fakes.spark_cluster import cluster_job
from tests.fakes.tap_read import read_frames, read_gaps
from tests.fakes.tls import TlsWorld

MINUTE_NS: Final = 60_000_000_000
LONG_S: Final = 120  # for what waits for Spark


class FleetCampaign(kills.Campaign):
    """A campaign with everything behind the tap. Used as a context.

    Args:
        cluster: URL of its master, and its workers.
        others: as of ``Campaign``.
    """

    def __init__(
        self, folder: Path, directory: Path, seed: int, s3: S3, tls: TlsWorld, cluster: tuple[str, list["subprocess.Popen[bytes]"]], disk: bool
    ) -> None:
        self.s3 = s3
        self.state = folder / "state"
        self.output = s3.url.replace("production", "tables")
        self.done: collections.Counter[str] = collections.Counter()
        self.restarts: list[str] = []  # why the job ended by itself, and had to be started again
        self._master, self.workers = cluster
        self._errors = (folder.parent / "job.log").open("w+")
        self._held = contextlib.ExitStack()
        ship = {"to": s3.url, "interval": "1s", "keep": "shipped"}
        small = {"segment_age": "1s", "segment_size": "1MiB", "budget": "16MiB", "flush": "20ms", "ship": ship}
        super().__init__(folder, directory, seed, "all", disk=disk, tls=tls, **small)
        self.most = 300

    def __enter__(self) -> "FleetCampaign":
        self.start_job()
        return self

    def __exit__(self, *failure: object) -> None:
        self._held.close()
        self.close()
        self._errors.close()

    # --- the job -----------------------------------------------------------------------------------------------------------------

    def start_job(self, **trigger: Any) -> None:
        """Start the driver, or start it again. Without a trigger it goes on until it is killed."""
        self._held.close()
        self._errors.truncate(0)
        trigger = trigger or {"processingTime": "200 milliseconds"}
        self.job = self._held.enter_context(cluster_job(self._master, self.s3.url, self.output, self.state, self._errors.fileno(), **trigger))

    def keep_job(self) -> None:
        """Start the job again if it has ended, as an operator does."""
        if self.job.poll() is not None:
            self.restarts.append(self.job_errors())
            self.start_job()

    def job_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:]

    def commits(self) -> int:
        """The number of requests so far that may have committed a batch."""
        return sum(method == "PUT" and "/frames/_delta_log/" in path for method, path in list(self.s3.requests))

    def progress(self) -> None:
        """Wait until the job has committed something more."""
        before = self.commits()

        def committed() -> bool:
            self.keep_job()
            if all(client.quiet for client in self.traffic.here):
                self.flood()
            return self.commits() > before

        self.until(committed, "the job commits", LONG_S)

    # --- faults ------------------------------------------------------------------------------------------------------------------

    def flood(self) -> None:
        """Some clients leave in order, others come, and all send."""
        self.traffic.stop()
        self.traffic.quiet()
        self.traffic.leave(self.rng.sample(self.traffic.here, len(self.traffic.here) // 3))
        super().flood()

    def fault(self, kind: str) -> None:
        """One of ``FAULTS``, while all send."""
        self.keep_job()
        FAULTS[kind](self)
        self.done[kind] += 1

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def judge(self, *faults: str) -> dict[Key, Account]:
        """Stop in order, let the job read everything, and hold the tables against the store's log, and that against what was seen."""
        self.traffic.stop()
        self.traffic.quiet()
        self.traffic.part()
        assert self.proxy.stop(kills.WAIT_S) == 0
        shipped = run_cli("tap", "ship", str(self.directory), self.s3.url + "/test")  # the shipper may wait for its next attempt
        assert shipped.returncode == 0, shipped.stderr
        self.start_job(availableNow=True)
        said, _ = self.job.communicate(timeout=LONG_S)
        assert self.job.returncode == 0, self.job_errors()
        root = f"{self.s3.url}/test"
        accounts = judge(root, self.traffic, kills.captured(self._rules), faults)
        self._compare(root, said)
        self._judge_minutes()
        return accounts

    def _compare(self, root: str, said: str) -> None:
        """The tables have what the log has, each once."""
        names = ("stream", "connection_id", "direction", "sequence")
        rows = table(self.output, "frames", *names, "offset", "chunk_index", "frame_index", "payload")
        log = [(item.stream, item.connection, item.direction, item.number, item.body) for item in read_frames(root)]
        assert collections.Counter((*(row[name] for name in names), row["payload"]) for row in rows) == collections.Counter(log)
        assert len({(row["stream"], row["offset"], row["chunk_index"], row["frame_index"]) for row in rows}) == len(rows)
        gaps = collections.Counter((gap.stream, gap.reason, gap.certainty, gap.frames) for gap in read_gaps(root))
        told = ("stream", "reason", "certainty", "lost_frames")
        assert collections.Counter(tuple(row[name] for name in told) for row in table(self.output, "gaps", *told)) == gaps

    def _judge_minutes(self) -> None:
        ask = open_tables(self.output)
        fleet = verify_fleet(self.s3.url)
        judged = [tuple(row.values()) for row in ask("SELECT minute, state, seen, lost, at_most FROM minutes ORDER BY minute").to_pylist()]
        assert [(int(minute.timestamp()) * 10**9, *row) for minute, *row in judged] == [
            (one.window_ns, one.state, one.seen, one.lost, one.at_most) for one in fleet.minutes
        ]


def driver(campaign: FleetCampaign) -> None:
    """The job's driver, with its JVM."""
    campaign.progress()
    time.sleep(campaign.rng.random())
    os.killpg(campaign.job.pid, signal.SIGKILL)
    campaign.start_job()


FAULTS: Final[dict[str, Callable[[FleetCampaign], None]]] = {
    "processor": kills.flood,
    "driver": driver,
}
