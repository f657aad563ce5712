"""Drain (rule 8)."""

import pytest

from proxy.network import mute
from proxy.network.cause import Cause
from proxy.relay.rows import open_row
from tests.fakes.kafka_frames import answer, request
from tests.fakes.world import SECOND, World, frame


@pytest.fixture
def make():
    worlds: list[World] = []

    def build(*args, **options) -> World:
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


def begin(world: World, seconds: int = 30) -> None:
    world.relay.pairs.draining = True
    world.drain.start(seconds * SECOND)
    world.poll()


def test_a_drain_without_pairs_is_done_at_once(make):
    world = make()
    begin(world)
    assert world.told.cut_off == [0]


def test_a_framed_pair_ends_when_it_is_quiet(make):
    world = make(quiet_s=1)
    client, upstream, pair = world.pair()
    client.sendall(frame(b"a"))
    assert world.read(upstream, 5) == frame(b"a")
    begin(world)
    assert open_row(pair, 0)["state"] == "draining"
    assert open_row(pair, 0)["muted"] == ["drain"]
    world.pass_time(0.9)
    upstream.sendall(frame(b"answer"))
    assert world.read(client, 10) == frame(b"answer")
    world.pass_time(0.9)
    assert not world.rows
    assert pair.state.value == "open"
    world.pass_time(0.2)
    assert world.ended(client) == b""
    assert world.ended(upstream) == b""
    client.close()
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["lost"]["bytes"]) == ("drained", 0)
    world.pass_time(0.1)
    assert world.told.cut_off == [0]


def test_a_frame_begun_is_finished_first(make):
    world = make()
    client, upstream, _ = world.pair()
    begun = frame(b"begun")
    client.sendall(begun[:7])
    world.poll()
    begin(world)
    world.pass_time(5)
    assert not world.rows
    client.sendall(begun[7:])
    assert world.read(upstream, len(begun)) == begun
    world.pass_time(1.1)
    assert world.ended(upstream) == b""
    client.close()
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["frames"]["request"]) == ("drained", 1)


def test_a_kafka_pair_ends_when_no_answer_is_open(make):
    world = make("kafka")
    client, upstream, _ = world.pair()
    client.sendall(request(3, 9, 1))
    world.read(upstream, len(request(3, 9, 1)))
    begin(world)
    world.pass_time(5)
    assert not world.rows
    upstream.sendall(answer(1))
    assert world.read(client, 8) == answer(1)
    world.pass_time(0.1)
    assert world.ended(client) == b""
    client.close()
    upstream.close()
    world.until(lambda: world.rows)
    assert world.row["cause"] == "drained"


def test_what_is_left_at_the_deadline_is_cut_off(make):
    world = make("kafka")
    client, _, _ = world.pair()
    client.sendall(request(3, 9, 1))
    world.poll()
    begin(world, 10)
    world.pass_time(9)
    assert not world.rows
    world.pass_time(1.1)
    assert world.row["cause"] == "drain_timeout"
    world.pass_time(0.1)
    assert world.told.cut_off == [1]


def test_no_new_pair_while_draining(make):
    world = make()
    begin(world)
    client, _ = world.client()
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: world.rows)
    assert world.row["cause"] == "drained"


def test_a_pair_that_closes_by_itself_is_not_cut_off(make):
    world = make("kafka")
    client, upstream, pair = world.pair()
    client.sendall(request(3, 9, 1))
    world.read(upstream, len(request(3, 9, 1)))
    begin(world)
    pair.abort(Cause.ADMIN, "", "internal")
    world.pass_time(0.1)
    world.pass_time(0.1)
    assert world.told.cut_off == [0]


def test_an_error_with_one_pair_costs_that_pair_and_the_drain_goes_on(make):
    world = make(quiet_s=1)
    (client, _, bad), (_, _, _) = world.pair(), world.pair()
    begin(world)
    world.blind(client, bad, mute.DRAIN)
    world.pass_time(1.1)
    for sock in world.sockets:
        sock.close()
    world.until(lambda: len(world.rows) == 2)
    assert {row["id"]: row["cause"] for row in world.rows}[int(bad.id)] == "drained"
    world.pass_time(0.1)
    assert world.told.cut_off == [0]
    assert world.selector.faults.take()[0].place == "timer"
