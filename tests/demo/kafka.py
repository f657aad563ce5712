"""``make run-kafka``: real clients reach three real brokers, which know nothing of the proxy, through the proxy.

The brokers advertise themselves, and the proxy a port of its own for each broker. The requests in Spark's tables are compared with the brokers' own
metrics, as they grew meanwhile. Topics and groups are prepared over listeners that do not lead through the proxy, and requests among the brokers are
left out by name. Of a few APIs the brokers may have more requests than clients sent: the proxy and other brokers use them too.
"""

import dataclasses
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from framegate.control.demo.ending import EXIT_FAILED, EXIT_MISSING, EXIT_OK, conclude, ended, exit_code
from framegate.control.demo.report import PROOF, proof
from framegate.control.demo.run import missing
from framegate.control.demo.stage import Serving, Stage, Workspace
from framegate.control.demo.steering import Metrics
from framegate.control.demo.view import Waiting, say
from framegate.proxy.tap.completeness import verify
from tests.demo import broker, records, small_pool
from tests.demo.brokers import Cluster, Watch
from tests.fakes.ports import free_ports

Tables = Mapping[str, list[dict[str, Any]]]

RECORDS: Final = 200_000
TOPIC: Final = "demo"
PARTITIONS: Final = 4

INTERNAL: Final = frozenset(
    {
        *("AllocateProducerIds", "AlterPartition", "AssignReplicasToDirs", "BrokerHeartbeat", "BrokerRegistration", "ControllerRegistration"),
        *("Envelope", "OffsetForLeaderEpoch"),
    }
)  # Requests among brokers and their controller

OWN: Final = frozenset({"ApiVersions", "DescribeCluster", "Metadata"})
"""Requests by which the proxy, and brokers among themselves, look at the cluster."""

_READY_S: Final = 60.0
_SETTLE_S: Final = 10.0
_WORK_S: Final = 180.0

QUERIES: Final[dict[str, str]] = {
    "sent": """
        SELECT cast(conv(hex(substring(payload, 1, 2)), 16, 10) AS int) AS api_key,
               cast(conv(hex(substring(payload, 3, 2)), 16, 10) AS int) AS api_version, count(*) AS requests
        FROM frames WHERE direction = 'request' GROUP BY ALL""",
    "answered": """
        SELECT api_key, api, api_version, answers AS requests, coalesce(latency_us_p50, 0) AS latency_us_p50,
               coalesce(latency_us_p99, 0) AS latency_us_p99, answer_bytes
        FROM requests_by_api""",
    "frames": "SELECT direction, count(*) AS frames FROM frames GROUP BY direction",
    "unclaimed": """
        SELECT coalesce(sum(lost_frames), 0) AS frames FROM gaps
        WHERE direction = 'response' AND reason = 'undelivered' AND certainty = 'exact'""",
    **small_pool.QUERIES,
}


class RequestCount(NamedTuple):
    """The requests of one API and version, counted in three places."""

    # api, version: of the requests
    api: str
    version: int
    sent: int  # request frames in Spark's tables, by the first four bytes of each
    answered: int  # rows of the table ``requests`` with an answer, which the proxy paired with its request
    broker: int  # by so much the brokers' metrics grew, together
    # latency_us_p50, latency_us_p99: from request to answer, measured by the proxy
    latency_us_p50: int
    latency_us_p99: int

    @property
    def good(self) -> bool:
        """Whether every request reached a broker. A request in flight when its client leaves may have no answer."""
        return (self.sent <= self.broker if self.api in OWN else self.sent == self.broker) and self.answered <= self.sent


def run(directory: Path | None = None) -> int:
    """Run it to its report. ``directory``: the folder of the run; None: one for temporary files. Returns: The exit code, as that of
    ``framegate demo``.
    """
    absent = missing("pyspark", "pyarrow") or " and ".join(broker.missing_tools())
    if absent:
        return ended(absent, EXIT_MISSING)

    def perform() -> int:
        with Stage(Workspace(directory, "framegate-demo-kafka")) as stage:
            return EXIT_OK if _KafkaDemo(stage).perform() else EXIT_FAILED

    return exit_code(perform, broker.BrokerError, KafkaException)


def prepare_topics(address: str, partitions: Mapping[str, int], replicas: int = 1) -> None:
    """Create the topics, with so many replicas, and that of large batches, with one. The brokers also create what groups and idempotent producers
    need, so that they do not have to while requests are counted.
    """
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": address, "log_level": 3}
    topics = [NewTopic(topic, count, replicas) for topic, count in {**partitions, "warm-up": 1}.items()]
    large = {**records.TOPIC_SETTINGS, "min.insync.replicas": "1"}
    create_topics(AdminClient(settings), [*topics, NewTopic(small_pool.TOPIC, 1, 1, config=large)])
    producer = Producer({**settings, "enable.idempotence": True})
    producer.produce("warm-up", b"")
    producer.flush(_READY_S)
    consumer = Consumer({**settings, "group.id": "warm-up", "auto.offset.reset": "earliest"})
    consumer.subscribe(["warm-up"])
    deadline = time.monotonic() + _READY_S
    while consumer.poll(0.2) is None:
        if time.monotonic() > deadline:
            raise broker.BrokerError(f"the broker at {address} gave no record within {_READY_S:g} s")
    consumer.close()


def create_topics(admin: AdminClient, topics: list[NewTopic]) -> None:
    """Create topics on a fresh broker. A busy one may answer late: the client then asks again, and is told that the topic exists."""
    for future in admin.create_topics(topics).values():
        try:
            future.result(_READY_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def compare(tables: Tables, before: Mapping[tuple[str, int], int], after: Mapping[tuple[str, int], int]) -> list[RequestCount]:
    """The counts of each API and version, most frequent first.

    Args:
        tables: answers to ``QUERIES``.
        before: the brokers' metrics when nothing had passed the proxy.
        after: the same when everything had.
    """
    names = {row["api_key"]: row["api"] for row in tables["answered"]}
    answered = {(row["api"], row["api_version"]): row for row in tables["answered"]}
    sent = {(names.get(row["api_key"], f"api-{row['api_key']}"), row["api_version"]): int(row["requests"]) for row in tables["sent"]}
    grown = {key: value - before.get(key, 0) for key, value in after.items() if key[0] not in INTERNAL}
    counts = []
    for key in {key for key, value in grown.items() if value} | sent.keys() | answered.keys():
        paired, p50, p99 = (int(answered.get(key, {}).get(name, 0)) for name in ("requests", "latency_us_p50", "latency_us_p99"))
        api, version = key
        counts.append(RequestCount(api, version, sent.get(key, 0), paired, grown.get(key, 0), p50, p99))
    return sorted(counts, key=lambda count: (-count.sent, count.api, count.version))


def unclaimed(tables: Tables, counts: Sequence[RequestCount]) -> int:
    """How many answers came when their client had left; 0 when there are more of them than requests without an answer. ``tables``: answers to
    ``QUERIES``. ``counts``: of ``compare``.
    """
    frames = int(tables["unclaimed"][0]["frames"])
    return frames if frames <= sum(count.sent - count.answered for count in counts) else 0


class _KafkaDemo:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._console = Console()
        self._waiting = functools.partial(Waiting, self._console)

    def perform(self) -> bool:
        """The whole demo; whether everything was equal."""
        stage = self._stage
        if not (broker.cache_directory() / "complete").exists():
            with self._waiting(f"fetching Apache Kafka {broker.VERSION} into {broker.cache_directory()}, once"):
                broker.prepare()
        with Cluster(stage.workspace.root / "kafka", options=("-Xmx256m",)) as kafka:  # a batch of 50 MiB is written as a whole
            stage.start_pipeline()  # first: Spark takes longest
            with self._waiting(f"starting: three brokers of Apache Kafka {broker.VERSION}, proxy with two processors"):
                kafka.start()
                serving = self._start_proxy(kafka.bootstrap("PLAIN"))
            nodes = ", ".join(f"{node} on {address}" for node, address in zip(kafka.brokers, kafka.bootstrap("PLAIN"), strict=True))
            say(self._console, f"  clients on 127.0.0.1:{serving.port} (TLS); brokers, which advertise themselves: {nodes}")
            with self._waiting("starting Spark, and preparing topics"):
                stage.wait_for_spark()
                prepare_topics(kafka.bootstrap("INTERNAL")[0], {TOPIC: PARTITIONS}, len(kafka.brokers))
                before = self._counts(kafka)
            with Watch(kafka, stage.proxy.pid) as watch:
                final = self._work(serving.port)
                fetched = self._fetch_large(serving)
            with self._waiting("asking the brokers what they counted, and stopping them and the proxy"):
                after = self._settled_counts(kafka)
                metrics = Metrics.scrape(serving.prometheus)
                code = stage.stop_proxy()
        log, verdict = stage.count_log(), verify(str(stage.workspace.tap))
        with self._waiting("stopping Spark, once it has read the log", lambda: f"{stage.table_rows():,} of {log.total:,} frames"):
            stage.drain_pipeline()
        with self._waiting("asking Spark SQL"):
            tables = stage.ask_tables({**QUERIES, **PROOF})
        counts = compare(tables, before, after)
        self._print_counts(counts)
        checks = [
            *self._checks(final, counts, tables, metrics),
            *small_pool.checks(fetched),
            small_pool.answer_check(metrics, tables),
            *proof(verdict, tables, unclaimed(tables, counts)),
            (
                f"{len(watch.seen)} brokers, each reached by the proxy, and {len(watch.leaks)} connections past it",
                len(watch.seen) == len(kafka.brokers),
            ),
            *((f"went past the proxy: {leak}", False) for leak in watch.leaks),
            (f"the proxy stopped cleanly (exit code {code})", code == 0),
        ]
        return conclude(self._console, stage.workspace, checks)

    def _work(self, port: int) -> dict[str, Any]:
        """Produce and consume through the proxy."""
        options = records.Options(bootstrap=f"127.0.0.1:{port}", topic=TOPIC, count=RECORDS, ca=str(self._stage.certificates.ca))
        command = [sys.executable, str(Path(__file__).parent), "records", json.dumps(dataclasses.asdict(options))]
        clients = self._stage.start("records", command, on_row=self._on_row)
        final = clients.wait_for_event("final", _WORK_S)
        clients.wait(_SETTLE_S)
        return final

    def _fetch_large(self, serving: Serving) -> small_pool.Fetched:
        """Fetch answers larger than the memory pool through the proxy."""
        size = f"{small_pool.POOL_BYTES >> 20} MiB"
        say(self._console, f"memory pool shrunk to {size}, for {small_pool.CONSUMERS} consumers that fetch batches of 50 MiB at once")
        fetched = small_pool.perform(self._stage, serving.admin, f"127.0.0.1:{serving.port}", self._on_row)
        say(self._console, "memory pool as before")
        return fetched

    def _start_proxy(self, bootstrap: list[str]) -> Serving:
        """Start the proxy before the cluster, with a port for each broker beside its own."""
        ports = free_ports(len(bootstrap) + 2)  # node ids begin at 1
        brokers = {"ports": f"{ports[1]}-{ports[-1]}"}
        return self._stage.start_proxy(
            {"kafka": {"bootstrap": bootstrap}},
            protocol="kafka",
            max_frame_bytes=small_pool.KEPT_BYTES,
            address=f"127.0.0.1:{ports[0]}",
            brokers=brokers,
            max_receive_size="16MiB",
        )

    @staticmethod
    def _counts(kafka: Cluster) -> dict[tuple[str, int], int]:
        """What the brokers have counted together, without what they ask each other."""
        with ThreadPoolExecutor(len(kafka.brokers), "counts") as executor:
            each = executor.map(broker.Broker.request_counts, kafka.brokers.values())
            return dict(sum((Counter({key: value for key, value in counts.items() if key[0] not in INTERNAL}) for counts in each), Counter()))

    def _settled_counts(self, kafka: Cluster) -> dict[tuple[str, int], int]:
        """The brokers' counts once the last long poll has ended and they no longer grow."""
        deadline = time.monotonic() + _SETTLE_S
        last: dict[tuple[str, int], int] = {}
        while True:
            counts = self._counts(kafka)
            if counts == last or time.monotonic() > deadline:
                return counts
            last = counts
            time.sleep(1.0)

    def _on_row(self, row: dict[str, Any]) -> None:
        if row["event"] == "progress":
            rows = self._stage.table_rows()
            say(self._console, f"produced {row['produced']:,}  consumed {row['consumed']:,}  frames in Spark's tables {rows:,}")

    def _print_counts(self, counts: list[RequestCount]) -> None:
        table = Table(title="Requests of each Kafka API, by Spark's tables and by the brokers' own metrics", title_justify="left")
        for name in ("API", "version", "requests", "brokers", "answered", "p50 ms", "p99 ms"):
            table.add_column(name, justify="left" if name == "API" else "right")
        for count in counts:
            times = (f"{count.latency_us_p50 / 1000:.2f}", f"{count.latency_us_p99 / 1000:.2f}") if count.answered else ("", "")
            table.add_row(count.api, str(count.version), f"{count.sent:,}", f"{count.broker:,}", f"{count.answered:,}", *times)
        self._console.print(table)

    def _checks(self, final: dict[str, Any], counts: list[RequestCount], tables: Tables, metrics: Metrics) -> list[tuple[str, bool]]:
        faults = {name: final[name] for name in ("wrong", "missing", "doubled", "out_of_order")}
        passed = f"{final['produced']:,} records produced, {final['consumed']:,} consumed in {final['elapsed_ms'] / 1000:.1f} s"
        forwarded = {
            "request": metrics.sum("framegate_frame_count_total", framegate_side="upstream", network_io_direction="transmit"),
            "response": metrics.sum("framegate_frame_count_total", framegate_side="downstream", network_io_direction="transmit"),
        }
        rows = {row["direction"]: int(row["frames"]) for row in tables["frames"]}
        requests, answers = rows.get("request", 0), rows.get("response", 0)
        odd = ", ".join(f"{count.api} v{count.version}" for count in counts if not count.good)
        answered = sum(count.answered for count in counts)
        return [
            (passed, final["produced"] == RECORDS),
            (f"content checked: {', '.join(f'{value} {name}' for name, value in faults.items())}", not any(faults.values())),
            (f"frames forwarded = rows: {requests:,} requests, {answers:,} answers", forwarded == rows),
            (f"requests of each API and version = the brokers' own count{f', but not {odd}' if odd else ''}", bool(counts) and not odd),
            (f"{answered:,} requests paired with their answer = all answers", answered == answers),
        ]
