"""Every whole frame received is passed on or dropped, and for the tap a frame or in a gap, whatever ends the pair. Counts, rows and log agree."""

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import TapRule
from framegate.proxy.relay import ending
from tests.fakes.accounts import LIMIT, Accounts
from tests.fakes.cases import each_of
from tests.fakes.tap_read import read_gaps
from tests.fakes.world import SECOND, reset
from tests.proxy.relay.conftest import finish, passes, send_all


@each_of("protocol", ["framed", "kafka"])
def test_the_rest_of_an_answer_that_was_cut_short_is_no_frame(make_accounts, protocol):
    """The client resets while the upstream sends on: the answer is a gap without frames, of the bytes that were passed on."""
    accounts = make_accounts(protocol, cut_answers=True)
    world = accounts.world
    client, upstream, pair = world.pair()
    asked = accounts.ask(10)
    passes(world, client, upstream, asked)
    data = accounts.reply(900_000)
    upstream.sendall(data[:300_000])
    world.until(lambda: pair.upstream.channel.read_half.cut_at > 0)
    reset(client)
    upstream.sendall(data[300_000:])
    finish(world, upstream)
    (row,) = accounts.settle()
    assert (row["frames"], row["detail"].startswith("within a frame, after ")) == ({"request": 1, "response": 0}, True)
    gaps = [(gap.reason, gap.direction, gap.frames) for gap in read_gaps(accounts.folder)]
    assert gaps == [("partial_frame", "response", 0)]


@each_of("protocol", ["framed", "kafka"])
def test_an_answer_whose_last_piece_comes_when_the_client_has_just_closed_is_no_frame(make_accounts, protocol):
    """Within one poll: the pair does not know of the end yet."""
    accounts = make_accounts(protocol, cut_answers=True)
    world = accounts.world
    client, upstream, pair = world.pair()
    passes(world, client, upstream, accounts.ask(10))
    data = accounts.reply(500_000)
    send_all(world, upstream, data[:400_000])
    assert world.read(client, 400_000) == data[:400_000]
    pair.client.channel.close(Cause.PEER_RESET)
    upstream.sendall(data[400_000:])
    world.poll(1)
    finish(world, upstream)
    (row,) = accounts.settle()
    assert (row["frames"]["response"], row["detail"]) == (0, "within a frame, after 400000 of its bytes")
    assert [(gap.reason, gap.frames, gap.bytes) for gap in read_gaps(accounts.folder)] == [("partial_frame", 0, 400_000)]


@each_of("protocol", ["framed", "kafka"])
def test_answers_behind_one_that_was_cut_short_are_frames_that_are_lost(make_accounts, protocol):
    """The first of them would be cut through, too."""
    accounts = make_accounts(protocol, cut_answers=True)
    world = accounts.world
    client, upstream, pair = world.pair()
    asked = accounts.ask(10) + accounts.ask(10) + accounts.ask(10)
    passes(world, client, upstream, asked)
    data = accounts.reply(900_000)
    send_all(world, upstream, data[:300_000])
    world.until(lambda: pair.upstream.channel.read_half.cut_at > 0)
    ending.end(pair, Cause.DRAIN_TIMEOUT, "", "internal")
    send_all(world, upstream, data[300_000:] + accounts.reply(300_000) + accounts.reply(10))
    world.poll(10)
    finish(world, upstream, client)
    (row,) = accounts.settle()
    assert row["frames"] == {"request": 3, "response": 2}
    gaps = [(gap.reason, gap.direction, gap.frames) for gap in read_gaps(accounts.folder)]
    assert gaps == [("partial_frame", "response", 0), ("undelivered", "response", 2)]


def test_what_a_client_sent_for_an_upstream_that_refuses_is_a_gap(make_accounts, refusing):
    accounts = make_accounts(endpoints=[refusing])
    world = accounts.world
    client, _ = world.client()
    client.sendall(accounts.ask(10) * 3)
    world.poll(10)
    finish(world, client)
    (row,) = accounts.settle()
    assert (row["cause"], row["frames"]) == ("upstream_refused", {"request": 3, "response": 0})
    assert [(gap.reason, gap.frames) for gap in read_gaps(accounts.folder)] == [("undelivered", 3)]


@each_of("protocol", ["framed", "kafka"])
def test_a_bug_of_ours_in_the_middle_of_a_run_leaves_a_gap(make_accounts, protocol):
    accounts = make_accounts(protocol)
    world = accounts.world
    client, upstream, pair = world.pair()
    first = accounts.ask(10)
    passes(world, client, upstream, first)
    client.sendall(accounts.ask(20) + accounts.ask(30) + b"\0\0")
    world.clock.readings_left = 2  # of the poll; the third is that of the run
    world.until(lambda: pair.client.gone)
    finish(world, upstream)
    (row,) = accounts.settle()
    assert (row["cause"], row["frames"]["request"]) == ("internal", 3)
    assert ("undelivered", 2, 1) in {(gap.reason, gap.frames, gap.first_frame) for gap in read_gaps(accounts.folder)}


def test_what_a_sampled_out_connection_drops_is_sampled(make_accounts):
    accounts = make_accounts(rule=TapRule(name="none", sample_connections=0.0))
    world = accounts.world
    client, upstream, _ = world.pair()
    client.sendall(accounts.ask(10))
    world.read(upstream, 14)
    reset(client)
    upstream.sendall(accounts.reply(10) * 2)
    world.poll()
    finish(world, upstream)
    accounts.settle()
    assert {gap.reason for gap in read_gaps(accounts.folder)} == {"sampled"}


class Story:
    """One pair and what happens to it; sockets that are gone take no more, which is not what is tested."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.world = accounts.world
        self.client, self.upstream, self.pair = self.world.pair()
        for sock in (self.client, self.upstream):
            sock.setblocking(False)

    def happen(self, step: str) -> None:
        with contextlib.suppress(OSError):
            (STEPS.get(step) or ENDS[step])(self)
        self.world.poll(1)

    def log(self) -> None:
        self.accounts.writer.write_queued()
        self.world.relay.pairs.tap_accepts()

    def drain(self) -> None:
        self.world.relay.pairs.draining = True
        self.world.drain.start(SECOND // 2)

    def bug(self) -> None:
        self.happen("ask")
        self.happen("reply")
        self.world.clock.readings_left = 2
        with contextlib.suppress(RuntimeError):  # when nobody could send anything, the bug hits the poll itself
            self.world.selector.poll(5)
        self.world.clock.readings_left = -1


Step = Callable[[Story], object]
STEPS: dict[str, Step] = {
    "ask": lambda story: story.client.send(story.accounts.ask(10) * 3),
    "ask_large": lambda story: story.client.send(story.accounts.ask(40_000) * 2),
    "ask_part": lambda story: story.client.send(story.accounts.ask(50)[:30]),
    "reply": lambda story: story.upstream.send(story.accounts.reply(10) + story.accounts.reply(20)),
    "reply_large": lambda story: story.upstream.send(story.accounts.reply(400_000)),
    "reply_part": lambda story: story.upstream.send(story.accounts.reply(60)[:20]),
    "poll": lambda story: story.world.poll(2),
    "flush": lambda story: story.accounts.writer.poll_due(story.world.clock.ns),
    "log": Story.log,
    "second": lambda story: story.world.pass_time(1),
}
ENDS: dict[str, Step] = {
    "client_resets": lambda story: reset(story.client),
    "client_closes": lambda story: story.client.close(),
    "client_half_closes": lambda story: story.client.shutdown(1),
    "client_oversize": lambda story: story.client.send(story.accounts.ask(5) + struct.pack(">i", LIMIT + 1) + b"behind"),
    "client_negative": lambda story: story.client.send(story.accounts.ask(5) + struct.pack(">i", -2) + b"behind"),
    "upstream_resets": lambda story: reset(story.upstream),
    "upstream_closes": lambda story: story.upstream.close(),
    "upstream_half_closes": lambda story: story.upstream.shutdown(1),
    "upstream_oversize": lambda story: story.upstream.send(story.accounts.reply(5) + struct.pack(">i", (1 << 20) + 1) + b"behind"),
    "admin": lambda story: ending.end(story.pair, Cause.ADMIN, "", "internal"),
    "abort": lambda story: ending.abort(story.pair, Cause.ADMIN, "", "internal"),
    "drain": Story.drain,
    "time_out": lambda story: story.world.pass_time(40),
    "bug": Story.bug,
}


@each_of("protocol", ["framed", "kafka"])
@each_of("on_full", ["drop", "mute"])
@each_of("end", ENDS)
def test_counts_rows_and_gaps_add_up_on_every_way_out(make_accounts, protocol, on_full, end):
    accounts = make_accounts(protocol, TapRule(name="all", on_full=on_full))
    story = Story(accounts)
    for step in ("ask", "reply", "ask_large", "reply_large", "ask_part", end, "reply", "reply_part", "ask", "poll", "second", "reply"):
        story.happen(step)
    accounts.settle()


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    protocol=st.sampled_from(["framed", "kafka"]),
    on_full=st.sampled_from(["drop", "mute"]),
    steps=st.lists(st.sampled_from([*STEPS, *STEPS, *ENDS]), max_size=25),
)
def test_counts_rows_and_gaps_add_up_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, protocol: str, on_full: Any, steps: list[str]
) -> None:
    accounts = Accounts(tmp_path_factory.mktemp("log"), protocol, TapRule(name="all", on_full=on_full))
    story = Story(accounts)
    for step in steps:
        story.happen(step)
    accounts.settle()
