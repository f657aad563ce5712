"""Each client, by each way in and each way through: it consumes what it produced, and the broker sees the right principal."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tap_read import read_frames
from tests.peers.clients import CLIENTS, Client, Said
from tests.peers.table import MATRIX, TABLES
from tests.peers.world import SASL, THROUGH, WAYS, World, password, person, short

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]
COUNT = 1000
VALUES = [f"{number:05d} {number * 7919:012x}" for number in range(COUNT)]
UNAUTHORISED = re.compile(
    r"(?i)topic authorization failed|not authorized to access topics|TopicAuthorizationFailedError|^Produce: error 29", re.MULTILINE
)
CELLS = [(name, way, through) for name in CLIENTS for way in WAYS for through in THROUGH if (f"{name} {way}", through) not in TABLES[MATRIX]]
# What kcat is refused for, by framegate and by brokers alike: its librdkafka repeats its nonce in SCRAM, and without curl its tokens are unsigned.
REFUSED = {
    ("kcat", "SCRAM-SHA-256"): ("invalid credentials with SASL mechanism SCRAM-SHA-256", "the nonce is not the one that was agreed"),
    ("kcat", "SCRAM-SHA-512"): ("invalid credentials with SASL mechanism SCRAM-SHA-512", "the nonce is not the one that was agreed"),
    ("kcat", "OAUTHBEARER"): ('{"status": ?"invalid_token"}', "signed with 'none', which is not allowed"),
}


def words(said: Said) -> str:
    """The exit code and the end of the output, for messages of failed tests."""
    return f"exit code {said.code}: {said.text[-2000:]}"


@pytest.mark.parametrize(("name", "way", "through"), CELLS)
def test_what_is_produced_is_consumed(world: World, client: Client, name: str, way: str, through: str, record_property: Any) -> None:
    row = f"{name} {way}"
    cell: list[tuple[str, str, str]] = [(row, through, "as it failed")]
    record_property(MATRIX, cell)
    topic, began_ns = world.topic(through, way, name), time.time_ns()
    entry = world.entry(through, way)
    produced = client.produce(entry, topic, VALUES)
    if (name, way) in REFUSED:
        cell[0] = (row, through, refused(world, produced, topic, began_ns, through, REFUSED[name, way]))
        return
    assert produced.code == 0, words(produced)
    consumed = client.consume(entry, topic, COUNT)
    assert (consumed.code, consumed.lines == VALUES) == (0, True), words(consumed)
    assert world.count(topic) == COUNT, "as many as were sent, and none twice"
    expected = "ANONYMOUS" if way == "TLS" or through == "passed" else person(way)
    rows = world.closed_since(began_ns, through, way)
    assert {item["principal"] for item in rows} == {expected}
    assert {item["cause"] for item in rows} <= {"peer_closed", "peer_reset", "upstream_closed", "no_data"}, (
        "some of librdkafka's leave without a request"
    )
    cell[0] = (row, through, "yes")
    if through == "swapped":
        refused_elsewhere(world, client, way)
        cell[0] = (row, through, "yes; another's topic: refused")


def refused_elsewhere(world: World, client: Client, way: str) -> None:
    """The broker sees another principal for each way in, and its ACLs refuse the topic of another one."""
    other = WAYS[(WAYS.index(way) + 1) % len(WAYS)]
    topic = world.topic("swapped", other, f"{client.name}-from-{way}")
    said = client.produce(world.entry("swapped", way), topic, VALUES[:1])
    assert UNAUTHORISED.search(said.text), words(said)
    assert world.count(topic) == 0


def refused(world: World, said: Said, topic: str, began_ns: int, through: str, expected: tuple[str, str]) -> str:
    """A login that is refused on purpose: what the client prints, and what the log says; nothing came through."""
    printed, logged = expected
    assert said.code != 0
    assert world.count(topic) == 0
    if through == "passed":  # the broker's own words
        found = said.line("ERROR: Local: Authentication failure")
        assert found, words(said)
        return f"refused by the broker: {found}"
    assert re.search(printed, said.text), words(said)
    rows = world.closed_since(began_ns, through, "PLAIN", cause="auth_failed")
    assert all(logged in row["detail"] for row in rows)
    return f"refused: {said.line('ERROR: Local: Authentication failure')}"


def test_within_tls_the_principal_is_that_of_the_login_and_not_of_the_certificate(world: World) -> None:
    """A revoked certificate is refused before the login."""
    client, way = CLIENTS["confluent-kafka"], "SCRAM-SHA-512"
    topic, began_ns = world.topic("terminated", way, "certified"), time.time_ns()
    certificate, key = world.certificate
    said = client.produce(world.entry("terminated", way, certificate=certificate, key=key), topic, VALUES[:1])
    assert (said.code, world.count(topic)) == (0, 1), words(said)
    assert {row["principal"] for row in world.closed_since(began_ns, "terminated", way)} == {person(way)}
    began_ns = time.time_ns()
    certificate, key = world.revoked
    said = client.produce(world.entry("terminated", way, certificate=certificate, key=key), topic, VALUES[:1])
    assert "alert certificate revoked" in said.text
    assert {row["principal"] for row in world.closed_since(began_ns, "terminated", way, cause="tls_failed")} == {None}
    assert world.count(topic) == 1


def test_the_tap_records_only_the_lengths_of_logins_that_pass_through(world: World, record_property: Any) -> None:
    way, topic = "PLAIN", world.topic("passed", "PLAIN", "tapped")
    secret = password(person(way)).encode()
    said = CLIENTS["confluent-kafka"].produce(world.entry("passed", way), topic, VALUES)
    assert said.code == 0, words(said)
    tap = world.folder / "gate" / "tap"
    deadline = time.monotonic() + 20
    while not (found := holding(tap, VALUES[-1].encode())):
        assert time.monotonic() < deadline, "the search finds what is there"
        time.sleep(0.1)
    assert found
    withheld = [frame for frame in read_frames(str(tap)) if frame.size and not frame.body]
    assert {frame.request_key >> 16 for frame in withheld if frame.request_key is not None} >= {17, 36}
    assert any(len(secret) < frame.size for frame in withheld if frame.direction == "request")
    assert holding(tap, secret) == []
    assert short(way) in topic


def holding(folder: Path, needle: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_each_combination_is_tested_or_listed_as_impossible() -> None:
    shown = {(f"{name} {way}", through) for name, way, through in CELLS}
    every = {(f"{name} {way}", through) for name in CLIENTS for way in WAYS for through in THROUGH}
    assert shown | set(TABLES[MATRIX]) == every
    assert not shown & set(TABLES[MATRIX])
    assert set(SASL) < set(WAYS)
