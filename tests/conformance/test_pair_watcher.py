"""What the relay and the drain rely on, of who watches pairs, and what a test may conclude from one: the loop of a processor, which says it over
its link, and the one that remembers it.
"""

import abc
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from proxy.network.channel import Channel
from proxy.network.mute import ADMIN
from proxy.relay.watcher import PairWatcher
from proxy.server.loop import Watcher
from tests.fakes.conformance import Kind
from tests.fakes.loop import LoopBench
from tests.fakes.upstream import refusing_port
from tests.fakes.world import Told, World, frame

INTERFACE: Final = PairWatcher
Row = dict[str, Any]
STOP: Final = {"type": "stop"}
MUTE: Final = {"type": "mute", "listener": "plain", "reason": "test"}
HALF: Final = frame(b"four")[:5]
REST: Final = frame(b"four")[5:]


class Learned(NamedTuple):
    """What was told. ``muted``: the ids of pairs whose mute had to wait."""

    opened: list[Row]
    closed: list[Row]
    muted: list[int]
    cut_off: list[int]
    endpoints: list[Row]


class Stage(abc.ABC):
    """What a kind can play, each once from its beginning to its end."""

    @abc.abstractmethod
    def drained(self, count: int, *, tells_open: bool = False) -> Learned:
        """So many pairs are open, and are drained."""

    @abc.abstractmethod
    def refused(self) -> Learned:
        """A client's upstream refuses."""

    @abc.abstractmethod
    def muted(self) -> Learned:
        """A pair is muted within a frame of its client, which then ends."""


class OfTold(Stage):
    """Over a world whose clock is moved by hand."""

    def drained(self, count: int, *, tells_open: bool = False) -> Learned:
        world = World(quiet_s=0)
        world.relay.pairs.tells_open = tells_open
        for _ in range(count):
            world.pair()
        world.drain.start(10**9)
        self._in_time(world, lambda: world.told.cut_off)
        return self._learned(world)

    def refused(self) -> Learned:
        with refusing_port() as port:
            world = World(endpoints=[("127.0.0.1", port)])
            world.client()
            self._in_time(world, lambda: world.rows)
            return self._learned(world)

    def muted(self) -> Learned:
        world = World()
        client, _, pair = world.pair()
        channel = pair.client.channel
        assert channel is not None, "the pair is open"
        client.sendall(HALF)
        world.until(lambda: channel.bytes_received == len(HALF))
        assert not channel.mute(ADMIN)
        client.sendall(REST)
        world.until(lambda: channel.mute_in_force)
        world.poll()
        return self._learned(world)

    @staticmethod
    def _in_time(world: World, done: Callable[[], object]) -> None:
        for _ in range(500):
            if done():
                return
            world.pass_time(0.02)
        raise AssertionError("it did not come to that in 10 s")

    @staticmethod
    def _learned(world: World) -> Learned:
        world.close()
        return Learned(world.told.opened, world.told.rows, world.told.muted, world.told.cut_off, world.told.endpoints)


class OfLoop(Stage):
    """Over a loop of its own, which says what it is told over its link."""

    def drained(self, count: int, *, tells_open: bool = False) -> Learned:
        with LoopBench() as bench:
            bench.relay.pairs.tells_open = tells_open
            self._peers_end_when_closing(bench)
            for _ in range(count):
                bench.connect()
            bench.when_open(count, lambda: bench.loop.begin_drain(1000))
            bench.when(lambda: bench.loop._drain.active, lambda: bench.when(lambda: not bench.loop._drain.active, lambda: bench.send(STOP, STOP)))
            return self._learned(bench)

    def refused(self) -> Learned:
        with LoopBench() as bench:
            self._peers_end_when_closing(bench)
            bench.upstream.close()
            bench.connect()
            bench.when(lambda: bench.cells.cell("framegate.connection.closed", "plain", "upstream_refused"), lambda: bench.send(STOP, STOP))
            return self._learned(bench)

    def muted(self) -> Learned:
        with LoopBench() as bench:
            client = bench.connect()

            def channel() -> Channel:
                (pair,) = bench.relay.pairs.open.values()
                assert pair.client.channel is not None, "the pair is open"
                return pair.client.channel

            def begin() -> None:
                client.sendall(HALF)
                bench.when(lambda: channel().bytes_received == len(HALF), lambda: bench.send({**MUTE, "id": 1}))
                bench.when(lambda: channel().mute_causes, lambda: client.sendall(REST))
                bench.when(lambda: channel().mute_in_force, lambda: bench.send(STOP, STOP))

            bench.when_open(1, begin)
            return self._learned(bench)

    @staticmethod
    def _peers_end_when_closing(bench: LoopBench) -> None:
        """As peers do that have read the end of their stream; else the pair waits a second for it."""

        def hang_up() -> None:
            for sock in (*bench.clients, bench.upstream):
                sock.close()

        pairs = bench.relay.pairs.open
        bench.when(lambda: pairs and {pair.state.value for pair in pairs.values()} == {"closing"}, hang_up)

    @staticmethod
    def _learned(bench: LoopBench) -> Learned:
        assert bench.loop.run([])
        bench.end()
        return Learned(
            [message["row"] for message in bench.of("opened")],
            [message["row"] for message in bench.of("closed")],
            [number for result in bench.of("result") for number in result["affected"]],
            [message["cut_off"] for message in bench.of("drained")],
            [message["fields"] for message in bench.of("log") if message["event"] == "endpoint_down"],
        )


KINDS: Final = {"loop": Kind(Watcher, OfLoop), "told": Kind(Told, OfTold)}


@pytest.fixture(params=KINDS)
def stage(request: pytest.FixtureRequest) -> Stage:
    made: Stage = KINDS[request.param].make()
    return made


ROW: Final = {"id", "listener", "peer", "upstream", "endpoint", "principal", "mechanism", "tls", "frames", "bytes", "opened_ns", "closed_ns",
              "cause", "detail", "side", "lost", "mutes", "state", "handshake_ns", "connect_ns", "connect_started_ns", "attempts"}  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_pair_that_ends_is_told_once_with_its_row_and_the_end_of_a_drain_once(stage: Stage, count: int) -> None:
    learned = stage.drained(count)
    assert [row["cause"] for row in learned.closed] == ["drained"] * count
    assert len({row["id"] for row in learned.closed}) == count
    assert all(set(row) == ROW for row in learned.closed), [set(row) ^ ROW for row in learned.closed]
    assert learned.cut_off == [0]
    assert (learned.opened, learned.muted, learned.endpoints) == ([], [], [])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_pair_that_opens_is_told_once_where_that_is_wanted(stage: Stage, count: int) -> None:
    learned = stage.drained(count, tells_open=True)
    assert [row["id"] for row in learned.opened] == sorted(row["id"] for row in learned.closed)
    assert len(learned.opened) == count
    for opened in learned.opened:
        (closed,) = [row for row in learned.closed if row["id"] == opened["id"]]
        assert set(opened) < set(closed)
        same = set(opened) - {"frames", "bytes", "opened_ns", "connect_started_ns"}  # of the last two the day's clock is asked anew
        assert {key: opened[key] for key in same} == {key: closed[key] for key in same}
        assert opened["bytes"] == {"request": 0, "response": 0}
        assert opened["attempts"] == 1


def test_an_endpoint_that_refuses_is_told_with_what_it_said(stage: Stage) -> None:
    learned = stage.refused()
    (endpoint,) = learned.endpoints
    assert (endpoint["upstream"], endpoint["reason"]) == ("u", "refused")
    assert endpoint["endpoint"].startswith("127.0.0.1:")
    assert [row["cause"] for row in learned.closed] == ["upstream_refused"]


def test_a_mute_that_had_to_wait_for_the_end_of_a_frame_is_told_when_it_is_in_force(stage: Stage) -> None:
    learned = stage.muted()
    assert learned.muted == [row["id"] for row in learned.closed]
    assert [row["frames"]["request"] for row in learned.closed] == [1]
