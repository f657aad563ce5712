"""A framegate that ships to an S3 server, a job in a Spark cluster that makes tables of it, and faults of each of them, at random moments."""

import collections
import contextlib
import functools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from framegate.control.cli.tap_fleet import fleet_exit_code, verify_fleet
from framegate.proxy.network.connection_id import parse_connection_id
from framegate.proxy.pipeline.sql import open_tables
from framegate.proxy.tap.ledger import run_of
from tests.fakes import kills
from tests.fakes.framegate import Framegate, run_cli, shipper_pid
from tests.fakes.jobs import table
from tests.fakes.judge import KAFKA, Account, Key, judge
from tests.fakes.kafka_traffic import KafkaTraffic
from tests.fakes.s3 import ABORTED, S3
from tests.fakes.small_disk import fill
from tests.fakes.spark_cluster import busy, cluster_job
from tests.fakes.tap_read import read_frames, read_gaps
from tests.fakes.tls import TlsWorld

MINUTE_NS: Final = 60_000_000_000
LOST: Final = {"lost", "at_most", "unknown"}
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
        self.kafka = KafkaTraffic(folder.parent / "broker")
        self.proxies: list[Framegate] = []
        self.s3 = s3
        self.state = folder.parent / "state" / "checkpoint"
        self.output = s3.url.replace("production", "tables")
        self.done: collections.Counter[str] = collections.Counter()
        self.of_kafka = ""  # what became of Kafka's requests
        self.missing = 0  # frames that reached their end, and are in no row
        self.restarts: list[str] = []  # why the job ended by itself, and had to be started again
        self._master, self.workers = cluster
        self._errors = (folder.parent / "job.log").open("w+")
        self._held = contextlib.ExitStack()
        ship = {"to": s3.url, "interval": "1s", "keep": "shipped"}
        small = {"segment_age": "1s", "segment_size": "1MiB", "budget": "16MiB", "flush": "20ms", "ship": ship}
        super().__init__(folder, directory, seed, "all", disk=disk, tls=tls, kafka=(self.kafka.port, self.kafka.address), **small)
        self.most = 100

    def __enter__(self) -> "FleetCampaign":
        self.start_job()
        return self

    def __exit__(self, *failure: object) -> None:
        self.s3.fault = lambda method, path: None
        self._held.close()
        self.close()
        self.kafka.close()
        self._errors.close()

    def begin(self) -> Framegate:
        self.proxies.append(super().begin())
        return self.proxy

    # --- the job -----------------------------------------------------------------------------------------------------------------

    def start_job(self, **trigger: Any) -> None:
        """Start the driver, or start it again. Without a trigger it goes on until it is killed."""
        self._held.close()
        self._errors.seek(0)
        self._errors.truncate()
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

    def progress(self) -> None:
        """Wait until the job has committed something more."""
        before, due_s = len(self.s3.requests), 0.0

        def committed() -> bool:
            nonlocal due_s
            self.keep_job()
            if time.monotonic() > due_s:
                self.flood()
                due_s = time.monotonic() + 2
            return any(method == "PUT" and "/frames/_delta_log/" in path for method, path in self.s3.requests[before:])

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
        (FAULTS | FAULTS_OF_DISKS)[kind](self)
        self.done[kind] += 1

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def judge(self, *faults: str) -> dict[Key, Account]:
        """Stop in order, let the job read everything, and hold the tables against the store's log, and that against what was seen."""
        self.traffic.stop()
        self.traffic.quiet()
        self.traffic.part()
        assert self.proxy.stop(kills.WAIT_S) == 0
        self.kafka.stop()
        ship = ("tap", "ship", str(self.directory), self.s3.url)  # the shipper may have waited for its next attempt
        self.until(lambda: run_cli(*ship).returncode == 0, "the rest is shipped")
        self.start_job(availableNow=True)
        self.job.communicate(timeout=2 * LONG_S)
        assert self.job.returncode == 0, self.job_errors()
        root = f"{self.s3.url}/test"
        accounts = judge(root, self.traffic, kills.captured(self._rules), faults)
        self._compare(root)
        self._judge_minutes()
        self.of_kafka = self.kafka.judge(functools.partial(table, self.output))
        return accounts

    def report(self, accounts: Mapping[Key, Account]) -> str:
        """What happened, and what was found, in numbers."""
        names = ("sent", "truth", "stored", "exact", "at_most", "unknown")
        sums = {name: sum(getattr(account, name) for account in accounts.values()) for name in names}
        ended = [text.strip().rsplit("\n", 1)[-1][:200] for text in self.restarts]
        clients = f"missing: {self.missing}; clients: {len(self.traffic.clients)}"
        return f"{dict(self.done)}; {sums}; {clients}; the job ended {len(ended)} times: {ended}\n{self.of_kafka}"

    def _compare(self, root: str) -> None:
        """The tables have what the log has, each once."""
        names = ("stream", "connection_id", "direction", "sequence")
        rows = table(self.output, "frames", *names, "offset", "chunk_index", "frame_index", "payload")
        log = [(item.stream, item.connection, item.direction, item.number, item.body) for item in read_frames(root)]
        assert collections.Counter((*(row[name] for name in names), row["payload"]) for row in rows) == collections.Counter(log)
        assert len({(row["stream"], row["offset"], row["chunk_index"], row["frame_index"]) for row in rows}) == len(rows)
        told = ("stream", "reason", "certainty", "lost_frames", "lost_ends")
        gaps = table(self.output, "gaps", *told)
        assert collections.Counter(tuple(row[name] for name in told[:-1]) for row in gaps if not row["lost_ends"]) == collections.Counter(
            (gap.stream, gap.reason, gap.certainty, gap.frames) for gap in read_gaps(root)
        )
        self._compare_ends(collections.Counter(row["stream"] for row in gaps for _ in range(row["lost_ends"] or 0)))

    def _compare_ends(self, lost: Mapping[str, int]) -> None:
        """Each connection that ended is a row once; those that were a dead processor's may be none. ``lost``: ends that gaps count, by stream."""
        received = self.traffic.echo.received()
        rows = table(self.output, "connections")
        ends = {row["connection_id"]: row for row in rows}
        assert len(ends) == len(rows), "a connection that is there twice"
        of_kafka = {identifier for identifier, end in ends.items() if end["listener"] == KAFKA}
        for identifier in of_kafka:
            del ends[identifier]
        without: collections.Counter[str] = collections.Counter()
        for client in self.traffic.clients:
            end = ends.pop(client.id, None)
            if end is None:
                without[client.stream] += 1
                continue
            assert (end["stream"], end["peer"], end["listener"]) == (client.stream, client.peer, client.listener)
            assert received.get(client.number, 0) <= end["request_frames"] <= client.sent, end
            assert client.received() <= end["response_frames"] <= end["request_frames"], end
        assert not ends, "connections that no client had"
        killed = {stream for kill in self.kills for stream in kill.streams if kill.kind != "control"}  # without control, processors end in order
        counted = collections.Counter(lost)
        counted.subtract({stream: count for stream, count in without.items() if stream not in killed})
        closed = (row["id"] for proxy in self.proxies for row in proxy.events("closed") if row["listener"] == KAFKA)
        assert min(counted.values(), default=0) >= 0
        assert counted.total() <= sum(parse_connection_id(text) not in of_kafka for text in closed), "nobody else had connections"

    def _judge_minutes(self) -> None:
        """No row says ``complete`` where a frame is missing; minutes are judged as ``verify`` does, and the command says so."""
        ask, fleet = open_tables(self.output), verify_fleet(self.s3.url)
        states = {
            (run_of(row["stream"]), row["listener"], row["direction"], int(row["minute"].timestamp()) // 60): row["state"]
            for row in ask("SELECT stream, listener, direction, minute, state FROM completeness").to_pylist()
        }
        judged = [tuple(row.values()) for row in ask("SELECT minute, state, seen, lost, at_most FROM minutes ORDER BY minute").to_pylist()]
        assert [(int(minute.timestamp()) * 10**9, *row) for minute, *row in judged] == [
            (one.window_ns, one.state, one.seen, one.lost, one.at_most) for one in fleet.minutes
        ]
        found = collections.defaultdict(set)
        for row in table(self.output, "frames", "connection_id", "direction", "sequence"):
            found[row["connection_id"], row["direction"]].add(row["sequence"])
        received = self.traffic.echo.received()
        for client in self.traffic.clients:
            for direction, count in (("request", received.get(client.number, 0)), ("response", client.received())):
                for number in set(range(count)) - found[client.id, direction]:
                    first, last = (at_ns // MINUTE_NS for at_ns in client.passed(number))
                    said = {states.get((run_of(client.stream), client.listener, direction, minute), "no row") for minute in range(first, last + 1)}
                    assert said & LOST, f"frame {number} of {client.id} is missing: {said}"
                    self.missing += 1
        code = run_cli("tap", "verify", self.s3.url).returncode
        assert code == fleet_exit_code(fleet) in (0, 1, 6)
        assert (code == 0) <= (not self.missing), "verify says that nothing is missing"


def driver(campaign: FleetCampaign) -> None:
    """The job's driver, with its JVM."""
    campaign.progress()
    time.sleep(campaign.rng.random())
    os.killpg(campaign.job.pid, signal.SIGKILL)
    campaign.start_job()


def executor(campaign: FleetCampaign) -> None:
    """An executor that has worked, with the tasks that it may have."""
    campaign.flood()

    def found() -> list[int]:
        campaign.keep_job()
        return busy(campaign.workers)

    campaign.until(lambda: bool(found()), "an executor works", LONG_S)
    time.sleep(campaign.rng.random())
    with contextlib.suppress(IndexError, ProcessLookupError):  # it has ended with its driver
        os.kill(campaign.rng.choice(found()), signal.SIGKILL)


def shipper(campaign: FleetCampaign) -> None:
    """The shipper, as soon as it lives."""
    campaign.flood()
    campaign.until(lambda: shipper_pid(campaign.proxy.process.pid) is not None, "the shipper lives", LONG_S)
    time.sleep(campaign.rng.random() / 2)
    pid = shipper_pid(campaign.proxy.process.pid)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def stopped_control(campaign: FleetCampaign) -> None:
    """SIGSTOP to control for some seconds, and perhaps a processor dies meanwhile."""
    campaign.flood()
    streams = campaign.streams()
    os.kill(campaign.proxy.process.pid, signal.SIGSTOP)
    try:
        time.sleep(campaign.rng.uniform(0.1, 3))
        victim = campaign.rng.choice([None, *sorted(streams)])
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
            campaign.note("stopped control", [streams[victim]])
            time.sleep(campaign.rng.random())
    finally:
        os.kill(campaign.proxy.process.pid, signal.SIGCONT)
    if victim is not None:
        campaign.recovered([streams[victim]])


def disk(campaign: FleetCampaign) -> None:
    """The disk of the log is full for a while."""
    kills.filled(campaign)
    kills.emptied(campaign)


def full_checkpoint(campaign: FleetCampaign) -> None:
    """The disk of the job's checkpoint is full until the job has ended."""
    ballast = campaign.state.parent / "ballast"
    campaign.flood()
    fill(ballast)
    campaign.until(lambda: campaign.job.poll() is not None, "the job ends", LONG_S)
    ballast.unlink()


def _of_store(campaign: FleetCampaign, fault: Callable[[str, str], int | None]) -> None:
    """A fault of the store, until a request has met it, and a moment longer."""
    campaign.flood()
    met: list[str] = []

    def counted(method: str, path: str) -> int | None:
        found = fault(method, path)
        if found is not None:
            met.append(path)
        return found

    campaign.s3.fault = counted
    campaign.until(lambda: bool(met), "a request meets the fault", LONG_S)
    time.sleep(2 * campaign.rng.random())
    campaign.s3.fault = lambda method, path: None


def refused(campaign: FleetCampaign) -> None:
    """Half of all requests get 503; they are done, or not."""
    campaign.s3.refuses_done = campaign.rng.random() < 0.5
    chance = random.Random(campaign.rng.random())
    _of_store(campaign, lambda method, path: 503 if chance.random() < 0.5 else None)


def truncated(campaign: FleetCampaign) -> None:
    """A part of each third uploaded segment arrives; uploads of others end within, and nothing of them is stored."""
    chance = random.Random(campaign.rng.random())

    def fault(method: str, path: str) -> int | None:
        if method != "PUT" or chance.random() < 0.67:
            return None
        return chance.randrange(100) if path.endswith(".seg") else ABORTED

    _of_store(campaign, fault)


def slow(campaign: FleetCampaign) -> None:
    """Each request takes up to a second, for some seconds."""
    chance = random.Random(campaign.rng.random())
    campaign.s3.fault = lambda method, path: time.sleep(chance.random())
    for _ in range(3):
        campaign.flood()
        time.sleep(campaign.rng.random())
    campaign.s3.fault = lambda method, path: None


def refusing(campaign: FleetCampaign) -> None:
    """The store is away for up to five seconds."""
    restarted(campaign, campaign.rng.uniform(1, 5))


def restarted(campaign: FleetCampaign, away_s: float = 0.0) -> None:
    """The store is started again; requests under way get no answer."""
    campaign.flood()
    count = len(campaign.s3.requests)
    campaign.until(lambda: len(campaign.s3.requests) > count, "a request", LONG_S)
    campaign.s3.stop()
    time.sleep(away_s)
    campaign.s3.start()


FAULTS: Final[dict[str, Callable[[FleetCampaign], None]]] = {
    "processor": kills.flood,
    "both processors": kills.two,
    "a processor in its recovery": kills.settling,
    "control": kills.control,
    "control and processors": kills.group,
    "control stopped": stopped_control,
    "shipper": shipper,
    "driver": driver,
    "executor": executor,
    "store restarted": restarted,
    "store away": refusing,
    "store slow": slow,
    "store refuses": refused,
    "store truncates": truncated,
}
FAULTS_OF_DISKS: Final[dict[str, Callable[[FleetCampaign], None]]] = {
    "disk full": disk,
    "processor while its disk is full": kills.full_at_kill,
    "checkpoint full": full_checkpoint,
}
