"""Clients that authenticate again, and again, under traffic: framegate's sessions last 5 s, and so do the broker's behind it.

All clients at once, for two minutes (``FRAMEGATE_PEERS_S`` says another time): the clients' own timers begin it.
"""

import os
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes.framegate import Row
from tests.peers.clients import CLIENTS, Client, Entry, Java, Said, require, run
from tests.peers.table import RENEWED
from tests.peers.world import SESSION_S, World, person

LASTS_S = int(os.environ.get("FRAMEGATE_PEERS_S", "120"))
pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(LASTS_S + 180)]
RATE = 50
COUNT = RATE * LASTS_S
WAYS = {"confluent-kafka": "SCRAM-SHA-512", "kafka-python": "SCRAM-SHA-256", "java": "OAUTHBEARER", "aiokafka": "PLAIN"}
CONNECTS_AGAIN = "aiokafka"  # 0.14 does not know how: it is ended with its session, at a request, and comes back. kcat gives up then.
ERRORS = re.compile(r"(?i)error|exception|fail|warn")
NS = 1_000_000_000
LEFT = {"peer_closed", "peer_reset", "no_data"}  # the client went, by itself


class ProducerPerformance(Java):
    """Kafka's own, which paces itself and sends the numbers from 0 on."""

    def command(self, verb: str, entry: Entry, topic: str, count: int) -> list[str]:
        if verb == "consume":
            return super().command(verb, entry, topic, count)
        words = ["--topic", topic, "--num-records", str(count), "--throughput", str(RATE), "--payload-monotonic", *self.settings(entry)]
        return self.tool(entry, "ProducerPerformance", "--bootstrap-server", f"127.0.0.1:{entry.port}", *words)


def traffic(client: Client, world: World, way: str, topic: str) -> tuple[Said, Said]:
    """Produce at an even pace and consume meanwhile."""
    java = isinstance(client, Java)
    lines = [str(number) for number in range(COUNT)]
    with ThreadPoolExecutor(1) as pool:
        command = client.command("consume", world.entry("renewed", way), topic, COUNT)
        consumed = pool.submit(run, command, [], seconds=LASTS_S + 60)
        command = client.command("produce", world.entry("renewed", way), topic, COUNT)
        produced = run(command, [] if java else lines, rate=RATE, seconds=(LASTS_S if java else 0) + 60)
        return produced, consumed.result()


def test_sessions_are_renewed_for_two_minutes_and_nothing_is_lost(world: World, record_property: Any) -> None:
    require(tuple(WAYS))
    table: list[tuple[str, str, str]] = []
    record_property(RENEWED, table)
    clients = {**CLIENTS, "java": ProducerPerformance("java")}
    topics = {name: world.topic("swapped", way, f"{name}-renewed") for name, way in WAYS.items()}
    began_ns = time.time_ns()
    with ThreadPoolExecutor(len(WAYS)) as pool:
        running = {name: pool.submit(traffic, clients[name], world, way, topics[name]) for name, way in WAYS.items()}
        said = {name: task.result() for name, task in running.items()}
    at_broker = {name: world.broker_says("RENEWED", name) for name in ("successful-reauthentication-total", "expired-connections-killed-count")}
    for name, way in WAYS.items():
        produced, consumed = said[name]
        lasted = [(row["closed_ns"] - row["opened_ns"]) / NS for row in ended(world, began_ns, way)]
        causes = Counter((row["cause"], row["detail"]) for row in ended(world, began_ns, way))
        what = f"{name}: {produced.code}, {produced.text[-2000:]}, {consumed.code}, {consumed.err[-2000:]}, {causes}"
        assert (produced.code, consumed.code) == (0, 0), what
        assert consumed.lines == [str(number) for number in range(COUNT)], what
        assert world.count(topics[name]) == COUNT, what
        proved = int(world.proxy.metric("framegate_authentication_count_total", framegate_listener="renewed", framegate_sasl_mechanism=way))
        causes = Counter(row["cause"] for row in ended(world, began_ns, way))
        cells = {"records, none lost": str(COUNT), "logins": str(proved), "connections": str(len(lasted)), "longest": f"{max(lasted):.0f} s"}
        table += [(name, column, text) for column, text in {**cells, "ended by": ", ".join(sorted(causes))}.items()]
        if name == CONNECTS_AGAIN:
            assert causes["session_expired"] >= LASTS_S // (2 * SESSION_S)
            continue
        assert not ERRORS.search(produced.text.replace("records/sec", "") + consumed.err), what
        assert set(causes) <= LEFT, what
        through = [seconds for seconds in lasted if seconds > 0.9 * LASTS_S]
        assert len(through) >= 2, f"{name}: a producer's and a consumer's connection last as long as the traffic: {lasted}"
        assert proved - len(lasted) >= 2 * (LASTS_S // SESSION_S - 1), "and are renewed as often as their session ends; an idle one is not"
    least = 2 * (len(WAYS) - 1) * (LASTS_S // SESSION_S - 1)
    assert at_broker["successful-reauthentication-total"] >= least, "and so were framegate's at the broker"
    assert at_broker["expired-connections-killed-count"] == 0
    record_property("the broker's listener", at_broker)


def test_a_consumer_that_waits_for_records_is_not_disconnected(world: World) -> None:
    """Each request waits half a second at the broker, so that logins often come after the end of a session; they are accepted. It takes twenty
    seconds: each consumer waits that long for a record before it gives up.
    """
    renewing = tuple(name for name in WAYS if name != CONNECTS_AGAIN)
    require(renewing)
    began_ns = time.time_ns()
    with ThreadPoolExecutor(len(renewing)) as pool:
        topics = {name: world.topic("swapped", WAYS[name], f"{name}-idle") for name in renewing}
        waiting = {name: pool.submit(CLIENTS[name].consume, world.entry("renewed", WAYS[name]), topics[name], 1) for name in renewing}
        said = {name: task.result() for name, task in waiting.items()}
    for name in renewing:
        causes = Counter(row["cause"] for row in ended(world, began_ns, WAYS[name]))
        assert set(causes) <= LEFT, f"{name}: {causes}, {said[name].text}"
        assert "nothing came for 20 s" in said[name].err or "Processed a total of 0 messages" in said[name].err
    assert world.broker_says("RENEWED", "expired-connections-killed-count") == 0


def ended(world: World, began_ns: int, way: str) -> list[Row]:
    """The connections of who came in that way."""
    return [row for row in world.closed_since(began_ns, "renewed", way) if row["principal"] == person(way)]
