"""The relay: what the selector tells reaches the right pair, and the tap gets what passes."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import TapRule
from framegate.proxy.network import mute
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.network.transport import MAX_READ
from framegate.proxy.relay import ending
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.kafka_frames import answer, request
from tests.fakes.tap_read import read_frames
from tests.fakes.world import SECOND, World, frame
from tests.proxy.relay.conftest import finish, passes, tapping


class Tapped:
    """A world whose frames are tapped."""

    def __init__(self, folder: Path, rule: TapRule, protocol: str = "framed", **tap: int) -> None:
        self.folder = folder
        options = tapping(folder, rule, **tap)
        self.writer: TapWriter = options["writer"]
        self.world = World(protocol, **options)

    def frames(self):
        """All that the log has, once the world is closed."""
        self.world.close()
        assert self.writer.flush_and_close(1000)
        return list(read_frames(str(self.folder)))


def test_each_hand_over_takes_one_id_whether_it_becomes_a_pair_or_not(world):
    _, first = world.client()
    unusable = socket.socket()
    unusable.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        world.relay.take_over(unusable, world.route, "192.0.2.1:1", world.clock.ns)
    refused = world.relay.refuse(world.route, Cause.INTERNAL)
    _, third = world.client()
    assert [format_connection_id(number) for number in (first.id, refused, third.id)] == ["1-1-1", "1-1-2", "1-1-3"]
    assert len(world.relay.pairs.open) == 2
    world.rows.append({"id": refused})  # the loop writes the row of one that is refused


def test_without_a_rule_that_matches_runs_go_straight_on(tmp_path):
    tapped = Tapped(tmp_path, TapRule(name="r", listeners=("other",)))
    _, _, pair = tapped.world.pair()
    assert pair.client.forward_to is pair.upstream.channel.write_half
    assert pair.upstream.forward_to is pair.client.channel.write_half
    assert tapped.frames() == []


def test_answers_carry_key_and_latency_and_credentials_stay_out(tmp_path):
    tapped = Tapped(tmp_path, TapRule(name="r"), "kafka")
    world = tapped.world
    client, upstream, _ = world.pair()
    ask = request(17, 0, 1, b"\x00\x05PLAIN") + frame(b"\0user\0canary-password")
    passes(world, client, upstream, ask)
    world.clock.ns += 250_000
    reply = answer(1, b"\0\0") + frame(b"canary-server-token")
    passes(world, upstream, client, reply)
    more = request(36, 1, 2, b"canary-again") + request(3, 9, 3, b"topics")
    passes(world, client, upstream, more)
    reply = answer(2, b"canary-too") + answer(3, b"brokers")
    passes(world, upstream, client, reply)
    frames = tapped.frames()
    assert not any(b"canary" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    answers = [item for item in frames if item.direction == "response"]
    assert [(item.request_key, item.latency_us) for item in answers] == [(17 << 16, 250), (-1, 250), (36 << 16 | 1, 0), (3 << 16 | 9, 0)]
    assert bytes(answers[-1].body)[4:] == b"brokers"


def test_an_error_with_one_of_those_that_wait_for_the_log_costs_that_pair_and_the_others_go_on(tmp_path):
    tapped = Tapped(tmp_path, TapRule(name="r", on_full="mute"))
    world = tapped.world
    (client, _, bad), (_, _, good) = world.pair(), world.pair()
    world.blind(client, bad, mute.TAP)
    good.client.channel.mute(mute.TAP)
    for pair in (bad, good):
        world.relay.pairs.tap_full(pair.client)
    world.relay.pairs.tap_accepts()
    assert (bad.client.channel.close_cause, good.client.channel.mute_causes) == ("internal", 0)
    assert world.selector.faults.take()[0].place == "channel"
    world.close()


def test_a_source_that_a_full_log_refused_is_unmuted_when_it_accepts(tmp_path):
    """The log had room, and had none again when it was asked: nobody else remembers who waits."""
    wakeup = os.eventfd(0, os.EFD_NONBLOCK)
    tapped = Tapped(tmp_path, TapRule(name="r", on_full="mute"), wakeup_fd=wakeup, queue_size=131072, flush_size=32768)
    world, writer = tapped.world, tapped.writer
    (client, upstream, pair), (other, other_upstream, other_pair) = world.pair(), world.pair()
    data = frame(b"x" * 40_000)
    while not pair.client.channel.mute_causes:
        passes(world, client, upstream, data)
    assert pair.client.channel.mute_causes == mute.TAP
    writer.write_queued()
    assert os.eventfd_read(wakeup) == 1
    passes(world, other, other_upstream, data)
    assert other_pair.client.channel.mute_causes == 0, "there is room for one chunk, and for nobody who waits"
    world.relay.pairs.tap_accepts()
    assert pair.client.channel.mute_causes == mute.TAP
    writer.write_queued()
    assert os.eventfd_read(wakeup) == 1
    world.relay.pairs.tap_accepts()
    assert pair.client.channel.mute_causes == 0
    world.close()
    os.close(wakeup)


QUEUE = 256 << 10
RUN = (64 << 10) + MAX_READ


@pytest.mark.parametrize("size", [50, 9_000, 40_000])
def test_a_full_log_stops_every_source_that_may_wait_before_it_is_read(tmp_path, size):
    """Forty sources send at once: the log takes one run beyond its bound, not forty; those that have nothing to say are not muted."""
    tapped = Tapped(tmp_path, TapRule(name="r", on_full="mute"), queue_size=QUEUE, flush_size=64 << 10)
    world = tapped.world
    pairs = [world.pair() for _ in range(40)]
    idle = world.pair()[2]
    bodies = max(1, 60_000 // size)
    data = frame(bytes(size)) * bodies
    for client, _, _ in pairs:
        client.sendall(data)
    received = [b""] * 40

    def collect() -> None:
        for number, (_, upstream, _) in enumerate(pairs):
            upstream.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                received[number] += upstream.recv(1 << 20)

    levels = []
    for _ in range(20):
        world.poll(1)
        levels.append(tapped.writer.queued_bytes)
        collect()
    assert QUEUE <= max(levels) < QUEUE + RUN
    assert len(set(levels[-10:])) == 1, "who is muted is not read"
    muted = [pair for _, _, pair in pairs if pair.client.channel.mute_causes == mute.TAP]
    assert len(muted) > 20
    assert idle.client.channel.mute_causes == 0
    for _ in range(400):
        tapped.writer.write_queued()
        tapped.writer.poll_due(world.clock.ns)
        world.clock.ns += SECOND
        world.relay.pairs.tap_accepts()
        world.poll(1)
        assert tapped.writer.queued_bytes < QUEUE + RUN
        collect()
        if all(len(each) == len(data) for each in received):
            break
    assert received == [data] * 40
    assert tapped.writer.frames_matched_request == 40 * bodies
    assert len(tapped.frames()) == 40 * bodies


@pytest.mark.parametrize("aborts", [False, True])
def test_a_pair_that_ends_while_the_log_is_full_is_read_to_its_end_and_not_kept(tmp_path, aborts):
    tapped = Tapped(tmp_path, TapRule(name="r", on_full="mute"), queue_size=64 << 10, flush_size=64 << 10)
    world = tapped.world
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(bytes(40_000)) * 2)
    world.until(lambda: pair.client.channel.mute_causes == mute.TAP)
    assert pair.client in world.relay.pairs._starved
    client.sendall(frame(b"nobody takes this"))
    world.poll(5)
    (ending.abort if aborts else ending.end)(pair, Cause.ADMIN, "", "internal")
    finish(world, client, upstream)  # without a second of waiting: the clock stands still
    assert not world.relay.pairs._starved
    assert len(tapped.frames()) == 2
    assert tapped.writer.dropped_undelivered == (0 if aborts else 1)
