"""Each client, by each way into a cluster: it does everything, no record is lost or doubled, and it never learns a broker's own address."""

import collections
from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers.clients import EVERYTHING, Built, Said, require
from tests.peers.cluster import BY, NODES, WAYS, ClusterWorld, open_cluster
from tests.peers.namespace import Namespace
from tests.peers.table import CLUSTER, TABLES

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]
COUNT = 500
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
    record_property(CLUSTER, [(name, f"{by} {way}", "yes" if client.administers else "yes, what it has")])
    if not client.administers:
        cluster.make_topic(topic)
    refused = cluster.namespace.failed_connects()
    said = client.everything(cluster.entry(by, way), topic, COUNT, cluster.namespace.prefix)
    assert said.code == 0, said.text[-2000:]
    found = words(said)
    counts = collections.Counter(found["value"])
    expected = {str(number) for number in range(2 * COUNT)}
    assert (sorted(expected - counts.keys()), sorted(counts.keys() - expected)) == ([], []), "lost, and what was not sent or aborted"
    assert [value for value, count in counts.items() if count > 1] == [], "doubled"
    assert set(found["broker"]) == cluster.told(by, way)
    if client.administers:
        assert (found["retention"], found["deleted"]) == (["3600000"], [topic])
        assert topic not in cluster.topics()
    assert (cluster.reached(way), cluster.watch.leaks) == (set(NODES), [])
    assert cluster.namespace.failed_connects() == refused, "nobody tried to reach a broker itself"


def words(said: Said) -> dict[str, list[str]]:
    """The printed lines' rests, by their first words."""
    found = collections.defaultdict(list)
    for line in said.lines:
        first, _, rest = line.partition(" ")
        found[first].append(rest)
    return found
