"""Each client, by each way into a cluster: it does everything, no record is lost or doubled, and it never learns a broker's own address."""

import collections
import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes.waiting import until
from tests.peers.clients import EVERYTHING, Built, Said, missing, require
from tests.peers.cluster import BY, NODES, WAYS, ClusterWorld, open_cluster
from tests.peers.namespace import Namespace
from tests.peers.table import CLUSTER, KILLED, TABLES

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]
COUNT = 500
COUNT_SLOWLY, PAUSE_S = 3000, 0.3
CELLS = [(name, by, way) for name in EVERYTHING for by in BY for way in WAYS if (name, f"{by} {way}") not in TABLES[CLUSTER]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWorld]:
    require()
    if lacking := Namespace.lacks():
        pytest.skip(lacking)
    with open_cluster(tmp_path_factory.mktemp("cluster")) as opened:
        yield opened


@pytest.fixture(scope="module")
def unavailable() -> dict[str, str]:
    """Why clients cannot be built here, by name."""
    built = [client for client in EVERYTHING.values() if isinstance(client, Built)]
    return {client.name: client.lacks() for client in built}


@pytest.mark.parametrize(("name", "by", "way"), CELLS)
def test_everything_goes_through(cluster: ClusterWorld, unavailable: dict[str, str], name: str, by: str, way: str, record_property: Any) -> None:
    require((name,), EVERYTHING)
    if unavailable.get(name):
        pytest.skip(unavailable[name])
    client = EVERYTHING[name]
    topic = f"{name}-{by}-{way}".lower()
    if not client.administers:
        cluster.make_topic(topic)
    refused = cluster.namespace.failed_connects()
    said = client.everything(cluster.entry(by, way), topic, COUNT, cluster.namespace.prefix)
    record_property(CLUSTER, [(name, f"{by} {way}", "yes" if client.administers else "yes, what it has")])
    assert (said.code, faults(cluster, by, way, said, COUNT)) == (0, []), said.err[-1500:]
    assert not client.administers or set(words(said)["broker"]) == cluster.told(by, way)
    if client.administers:
        assert (words(said)["retention"], words(said)["deleted"]) == (["3600000"], [topic])
        until(lambda: topic not in cluster.topics(), f"{topic} is deleted: a broker may know it later", 20)
    assert (cluster.reached(way), cluster.watch.leaks) == (set(NODES), [])
    assert cluster.namespace.failed_connects() == refused, "nobody tried to reach a broker itself"


def test_a_broker_is_killed_and_comes_back_while_all_clients_work(cluster: ClusterWorld, unavailable: dict[str, str], record_property: Any) -> None:
    require()
    able = [name for name in EVERYTHING if (name, KILLED) not in TABLES[CLUSTER] and not unavailable.get(name)]
    clients = [EVERYTHING[name] for name in able if not missing((name,), EVERYTHING)]
    by, way, refused = "ports", "TLS", cluster.namespace.failed_connects()
    topics = {client.name: f"{client.name}-killed" for client in clients}
    with ThreadPoolExecutor(len(clients)) as pool:
        running = {}
        for client in clients:
            if not client.administers:
                cluster.make_topic(topics[client.name])
            entry = dataclasses.replace(cluster.entry(by, way), pause_s=PAUSE_S)
            running[client.name] = pool.submit(client.everything, entry, topics[client.name], COUNT_SLOWLY, cluster.namespace.prefix)
        begun: set[str] = set()
        until(lambda: begun.update(cluster.topics()) or begun >= set(topics.values()), "all have begun", 60)
        time.sleep(1)  # and go on for some seconds
        cluster.cluster.kill(NODES[1])
        until(lambda: NODES[1] not in cluster.admin.list_topics(timeout=60).brokers, "it is taken for dead", 60)
        cluster.cluster.restart(NODES[1])
        said = {name: task.result() for name, task in running.items()}
    found = {name: faults(cluster, by, way, text, COUNT_SLOWLY) for name, text in said.items()}
    record_property(CLUSTER, [(name, KILLED, "yes") for name in said])
    wrong = [f"{name}: {text}" for name, texts in found.items() for text in texts]
    assert not wrong, "\n".join(wrong)
    assert cluster.watch.leaks == []
    assert cluster.namespace.failed_connects() == refused, "nobody tried to reach a broker itself"


def faults(cluster: ClusterWorld, by: str, way: str, said: Said, count: int) -> list[str]:
    """What is wrong with the records, or with what the client was told."""
    found = words(said)
    counts = collections.Counter(found["value"])
    expected = {str(number) for number in range(2 * count)}
    wrong = {
        f"lost: {sorted(expected - counts.keys())[:5]}": expected - counts.keys(),
        f"not sent, or aborted: {sorted(counts.keys() - expected)[:5]}": counts.keys() - expected,
        f"doubled: {[value for value, times in counts.items() if times > 1][:5]}": len(counts) < counts.total(),
        f"was told {found['broker']}": set(found["broker"]) != cluster.told(by, way),
    }
    return [f"{text}; {said.err[-1500:]}" for text, is_wrong in wrong.items() if is_wrong]


def words(said: Said) -> dict[str, list[str]]:
    """The printed lines' rests, by their first words."""
    found = collections.defaultdict(list)
    for line in said.lines:
        first, _, rest = line.partition(" ")
        found[first].append(rest)
    return found
