"""``framegate.control.steering.clients``: rankings of the last minute over the answers of processors, and what attacks have in common."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from framegate.control.accept.admission import Refusals
from framegate.control.errors import UnavailableError
from framegate.control.meters import Meters
from framegate.control.status import ClientRank
from framegate.control.steering.clients import LIMIT, MANY, METERS, SAMPLES, TOP, Clients
from framegate.proxy.cause import Cause
from framegate.proxy.cells.metrics import CLIENT_ADDRESS, ERROR_TYPE, LISTENER, PRINCIPAL
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.relay import ending
from framegate.proxy.server.rows import ClientRow
from tests.fakes.fleet import Fleet, open_channels, run
from tests.fakes.scenario import run_by
from tests.fakes.steered import Steered
from tests.fakes.world import frame


class Told:
    """A processor that answers what it is told, once."""

    def __init__(self) -> None:
        self.rows: list[ClientRow] = []
        self.totals: list[ClientRow] = []
        self.silent = False

    def tell(self, measure: str, amount: int, *client: str, listener: str = "l", total: bool = True) -> None:
        self.rows.append(ClientRow(measure=measure, client=[listener, *client], amount=amount))
        if total:
            self.totals.append(ClientRow(measure=measure, client=[listener], amount=amount))

    async def request(self, request: Any, timeout_ms: int) -> Any:
        assert request.message == {"type": "clients", "limit": LIMIT}
        if self.silent:
            raise UnavailableError("silent", reason="PROCESSOR_SILENT")
        totals: dict[tuple[str, str], int] = {}
        for row in self.totals:
            place = row["measure"], row["client"][0]
            totals[place] = totals.get(place, 0) + row["amount"]
        sums = [{"measure": measure, "client": [listener], "amount": amount} for (measure, listener), amount in totals.items()]
        answer = {"rows": self.rows, "totals": sums}
        self.rows, self.totals = [], []
        return answer


class Watched:
    """Rankings over processors, ten seconds a look."""

    def __init__(self, *processors: Any) -> None:
        self.now_s = 0.0
        self.meters, self.refusals = Meters(), Refusals()
        self.clients = Clients(SimpleNamespace(running=processors), self.refusals, self.meters, lambda: self.now_s)  # type: ignore[arg-type]

    def look(self, measure: Any = "bytes") -> list[ClientRank]:
        self.now_s += 10.0
        asyncio.run(self.clients.look())
        return list(self.clients.rankings[measure])


def test_clients_of_all_processors_are_ranked_by_what_they_used_per_second_in_the_last_minute() -> None:
    one, other = Told(), Told()
    watched = Watched(one, other)
    one.tell("bytes", 100, "ann", "id", "10.0.0.1")
    other.tell("bytes", 200, "ann", "id", "10.0.0.1")
    other.tell("bytes", 700, "bob", "", "10.0.0.2")
    assert watched.look() == [ClientRank("l", "bob", "", "10.0.0.2", 70.0, 0.7), ClientRank("l", "ann", "id", "10.0.0.1", 30.0, 0.3)]
    other.silent = True
    assert [rank.value for rank in watched.look()] == [35.0, 15.0]
    for _ in range(SAMPLES - 2):
        found = watched.look()
    assert [round(rank.value * 60) for rank in found] == [700, 300]
    one.tell("unavailable", 90, "", "", "")
    assert watched.look() == [], "it is longer than a minute ago"
    assert [watched.clients._minute.clients[measure] for measure in METERS] == [{}] * len(METERS), "and nothing is left of it"
    gauge = {key: value for key, value in watched.meters.snapshot().items() if key[0] == "framegate.client.login.failures"}
    place = ((LISTENER, "l"), (PRINCIPAL, MANY), (CLIENT_ADDRESS, MANY), (ERROR_TYPE, "unavailable"))
    assert gauge == {("framegate.client.login.failures", place): 1.5}, "of logins that could not be checked no client is named"


def test_memory_is_that_of_now_and_at_most_ten_clients_are_ranked() -> None:
    told = Told()
    watched = Watched(told)
    for number in range(TOP + 1):
        told.tell("held", number + 1, f"user-{number}", "", "")
    assert [rank.value for rank in watched.look("held")] == [*range(TOP + 1, 1, -1)]
    assert watched.look("held") == []


def test_a_client_of_ten_or_more_with_more_than_half_of_much_traffic_has_a_gauge_of_its_share() -> None:
    told = Told()
    watched = Watched(told)

    def shares(ann: int, bob: int, others: int = 8) -> dict[str, float]:
        for user, size in (("ann", ann), ("bob", bob), *((f"user-{number}", 1) for number in range(others))):
            told.tell("bytes", size, user, "", "")
        watched.look()
        return {dict(at)["framegate.principal"]: value for (name, at), value in watched.meters.snapshot().items() if name == "framegate.client.share"}

    assert shares(10, 1) == {}, "one that uses little hurts nobody"
    assert shares(30_000_000, 30_000_009) == {}
    assert shares(60_000_000, 0) == {"ann": pytest.approx(0.75, abs=1e-6)}
    told = Told()
    watched = Watched(told)
    assert shares(60_000_000, 1, others=7) == {}, "one of nine"


def test_a_client_that_leaves_the_first_ten_leaves_no_value_in_the_gauges() -> None:
    told = Told()
    watched = Watched(told)

    def exported() -> set[str]:
        return {dict(at)["framegate.principal"] for name, at in watched.meters.snapshot() if name == "framegate.client.io"}

    told.tell("bytes", 1, "ann", "", "")
    watched.look()
    assert exported() == {"ann"}
    for number in range(TOP):
        told.tell("bytes", 9, f"user-{number}", "", "")
    watched.look()
    assert exported() == {f"user-{number}" for number in range(TOP)}


def test_connections_refused_at_accept_count_beside_those_of_processors() -> None:
    told = Told()
    watched = Watched(told)
    for port in range(30):
        watched.refusals.add("l", f"10.0.0.1:{port}")
    told.tell("refusals", 10, "", "", "10.0.0.2")
    assert [(rank.address, rank.value, rank.share) for rank in watched.look("refusals")] == [("10.0.0.1", 3.0, 0.75), ("10.0.0.2", 1.0, 0.25)]
    for number in range(10_000):
        watched.refusals.add("l", f"10.1.{number >> 8}.{number & 255}:1")
    clients, totals = watched.refusals.take()
    assert (len(clients) <= 100, totals) == (True, {"l": 10_000})


# --- attacks -----------------------------------------------------------------------------------------------------------------------------


def logins(*failed: tuple[str, str, int]) -> list[tuple[str, str, float]]:
    """What logins by user, address and number have in common: user, address, and a share of all."""
    told = Told()
    watched = Watched(told)
    users: dict[str, int] = {}
    addresses: dict[str, int] = {}
    for user, address, count in failed:
        told.tell("logins", count, user, "", address)
        users[user] = users.get(user, 0) + count
        addresses[address] = addresses.get(address, 0) + count
    told.rows = sorted(told.rows, key=lambda row: -row["amount"])[:LIMIT]
    for name, counts, place in (("login_users", users, 0), ("login_addresses", addresses, 2)):
        for text, count in sorted(counts.items(), key=lambda item: -item[1])[:LIMIT]:
            told.tell(name, count, *([""] * place + [text] + [""] * (2 - place)), total=False)
    return [(rank.principal, rank.address, round(rank.share, 2)) for rank in watched.look("logins")]


def test_failed_logins_are_named_by_what_they_have_in_common_and_each_counts_once() -> None:
    cases: tuple[tuple[list[tuple[str, str, int]], list[tuple[str, str, float]]], ...] = (
        ([("ann", "10.0.0.1", 600)], [("ann", "10.0.0.1", 1.0)]),
        ([("ann", f"10.0.{number >> 8}.{number & 255}", 1) for number in range(1_000)], [("ann", MANY, 1.0)]),
        ([(f"user-{number}", "10.0.0.1", 1) for number in range(1_000)], [(MANY, "10.0.0.1", 1.0)]),
        ([(f"user-{number}", f"10.0.{number >> 8}.{number & 255}", 1) for number in range(1_000)], [(MANY, MANY, 1.0)]),
        (
            [("ann", "10.0.0.1", 60), *((f"user-{number}", "10.0.0.2", 1) for number in range(40))],
            [("ann", "10.0.0.1", 0.6), (MANY, "10.0.0.2", 0.4)],
        ),
        (
            [("ann", "10.0.0.1", 50), ("bob", "10.0.0.1", 50), ("ann", "10.0.0.2", 50)],
            [("ann", "10.0.0.1", 0.33), ("bob", "10.0.0.1", 0.33), ("ann", "10.0.0.2", 0.33)],
        ),
        ([(MANY, "10.0.0.1", 9)], [(f"\\{MANY}", "10.0.0.1", 1.0)]),
        ([], []),
    )  # fmt: skip
    assert [logins(*failed) for failed, _ in cases] == [found for _, found in cases]


# --- real pairs --------------------------------------------------------------------------------------------------------------------------


class Real:
    """A processor's commands over real pairs."""

    def __init__(self) -> None:
        self.steered = Steered()
        self.world = self.steered.world
        self.pairs = [self.world.pair(f"10.0.0.{number}:1") for number in range(1, 51)]

    async def request(self, request: Any, timeout_ms: int) -> Any:
        return request.read({**self.steered.ask(**{"kind" if key == "type" else key: value for key, value in request.message.items()}), "id": 1})

    def send(self, number: int, size: int) -> None:
        client, upstream, _ = self.pairs[number]
        client.sendall(frame(bytes(size)))
        assert len(self.world.read(upstream, size + 4)) == size + 4


@contextlib.contextmanager
def real() -> Iterator[tuple[Real, Watched]]:
    made = Real()
    yield made, Watched(made)
    for _, _, pair in made.pairs:
        ending.abort(pair, Cause.ADMIN, "", "internal")
    made.world.poll()
    made.world.close()


def test_one_noisy_client_among_fifty_is_the_first_and_leaves_a_minute_after_its_end() -> None:
    with real() as (made, watched):
        for number in range(50):
            made.send(number, 96)
        made.send(7, 50_000)
        first, second, *_ = watched.look()
        assert (first.address, first.value, round(first.share, 2), second.value) == ("10.0.0.8", 5010.4, 0.91, 10.0)
        assert watched.look("frames")[0].address == "10.0.0.8"
        ending.abort(made.pairs[7][2], Cause.ADMIN, "", "internal")
        made.world.poll()
        for _ in range(SAMPLES):
            for number in range(50):
                if number != 7:
                    made.send(number, 96)
            found = watched.look()
        assert len(found) == TOP
        assert "10.0.0.8" not in {rank.address for rank in found}


def test_logins_with_ten_thousand_names_are_one_entry_with_their_address() -> None:
    with real() as (made, watched):
        _, pair = made.world.client("203.0.113.9:1")
        use = made.world.relay.pairs.use
        for number in range(10_000):
            error = AuthenticationError("no")
            error.failure, error.attempted = "credentials", f"user-{number}"
            if number == 0:
                pair.client.channel.close(Cause.AUTH_FAILED, "", error)
                made.world.poll()
            else:
                pair.client.channel.error = error
                use.ended(pair)
        assert watched.look("logins") == [ClientRank("l", MANY, "", "203.0.113.9", 1000.0, 1.0)]


@run_by(run, 2, "holding")
async def test_processors_are_asked_over_the_link(made: Fleet) -> None:
    await open_channels(made, 3)
    began = time.monotonic()
    await made.steering.clients.look()
    ranks = made.steering.clients.rankings["bytes"]
    assert [rank.principal for rank in ranks] == sorted((rank.principal for rank in ranks), key=int, reverse=True)
    assert (len(ranks), round(sum(rank.share for rank in ranks), 3)) == (3, 1.0)
    assert time.monotonic() - began < 5
