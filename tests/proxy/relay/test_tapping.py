"""Rules that change while connections are open: every frame that a rule takes is there once, by the rules that were in force when it passed."""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.tap import record
from framegate.proxy.tap.log_block import GapRecord
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.kafka_frames import answer, request
from tests.fakes.tap_read import Frame, read_blocks, read_frames, read_gaps
from tests.fakes.world import World, frame, reset
from tests.proxy.relay.conftest import finish, passes

WALL_NS = 1_700_000_000_000_000_000


class Tapped:
    """A world with a log, and a way to change the rules."""

    def __init__(self, folder: Path, protocol: str = "framed", rules: tuple[TapRule, ...] = (), queue_size: int = 8 << 20, **options: Any) -> None:
        self.folder = str(folder)
        self.writer = TapWriter(TapConfig(directory=self.folder, queue_size=queue_size), "n", "0", "b")
        self.world = World(protocol, rules=TapRules(rules, self.writer), writer=self.writer, **options)
        self.world.relay.pairs.wall_offset_ns = WALL_NS
        self.client, self.upstream, self.open = self.world.pair()

    def set(self, *rules: TapRule) -> None:
        self.world.relay.retap(TapRules(rules, self.writer))

    def ask(self, data: bytes) -> None:
        passes(self.world, self.client, self.upstream, data)

    def reply(self, data: bytes) -> None:
        passes(self.world, self.upstream, self.client, data)

    def end(self) -> tuple[list[Frame], list[GapRecord]]:
        finish(self.world, self.client, self.upstream)
        self.world.close()
        assert self.writer.flush_and_close(1000)
        return list(read_frames(self.folder)), list(read_gaps(self.folder))

    def texts(self) -> list[str]:
        """The rules that the log names, in order, with "-" for each chunk of frames."""
        return [
            block.strings[row.rule] if row.kind == record.KIND_RULES else "-"
            for block in read_blocks(self.folder, "n.0.b")
            for row in block.rows
            if row.kind in (record.KIND_RULES, record.KIND_FRAMES)
        ]


def numbers(frames: list[Frame]) -> list[tuple[str, int, str | None]]:
    return [(item.direction, item.number, item.rule) for item in frames]


@pytest.mark.parametrize("protocol", ["framed", "kafka"])
def test_open_connections_follow_from_the_next_frame_on(tmp_path, protocol):
    tapped = Tapped(tmp_path, protocol)
    sent = 0

    def exchange() -> None:
        nonlocal sent
        sent += 1
        tapped.ask(request(3, 9, sent, b"x" * sent))
        tapped.reply(answer(sent, b"y" * sent))

    exchange()
    tapped.set(TapRule(name="a", directions=("request",)))
    exchange()
    exchange()
    tapped.set(TapRule(name="b", min_size=1), TapRule(name="a"))
    exchange()
    tapped.set()
    exchange()
    tapped.set(TapRule(name="c", directions=("response",)))
    exchange()
    frames, gaps = tapped.end()
    assert numbers(frames) == [("request", 1, "a"), ("request", 2, "a"), ("request", 3, "b"), ("response", 3, "b"), ("response", 5, "c")]
    assert gaps == []
    assert [len(item.body) for item in frames] == [len(request(3, 9, 1)) - 4 + 2, len(request(3, 9, 1)) - 4 + 3, len(request(3, 9, 1)) - 4 + 4, 8, 10]
    (row,) = tapped.world.rows
    assert row["frames"] == {"request": 6, "response": 6}


def test_frames_in_flight_at_the_change_are_neither_lost_nor_doubled(tmp_path):
    """A frame begun when the rules change, and runs that wait in the kernel, belong to the rules that are in force when they are whole."""
    tapped = Tapped(tmp_path, rules=(TapRule(name="r0"),))
    expected = []
    data = b"".join(frame(bytes([number]) * (number + 5)) for number in range(60))
    cuts = [0, *range(7, len(data), 61), len(data)]
    for turn, (start, end) in enumerate(itertools.pairwise(cuts)):
        tapped.client.sendall(data[start:end])
        tapped.world.poll()
        expected += [f"r{turn}"] * (tapped.writer.frames_matched_request - len(expected))
        tapped.set(TapRule(name=f"r{turn + 1}", max_size=10_000 if turn % 2 else 0))
    assert tapped.world.read(tapped.upstream, len(data)) == data
    frames, gaps = tapped.end()
    assert ([item.number for item in frames], [item.rule for item in frames], gaps) == (list(range(60)), expected, [])
    assert [item.body for item in frames] == [bytes([number]) * (number + 5) for number in range(60)]
    assert len(set(expected)) > 5


@pytest.mark.parametrize("after", ["none", "other", "selecting"])
def test_a_frame_that_is_cut_through_ends_under_its_old_rule(tmp_path, after):
    tapped = Tapped(tmp_path, rules=(TapRule(name="old"),), cut_answers=True)
    body = bytes(range(256)) * 3000
    data = frame(body)
    tapped.upstream.sendall(data[:400_000])
    tapped.world.until(lambda: tapped.open.upstream.channel.read_half.cut_at > 0)
    tapped.set(*{"none": (), "other": (TapRule(name="new"),), "selecting": (TapRule(name="new", min_size=2),)}[after])
    assert tapped.open.upstream.tap.is_within
    tapped.upstream.sendall(data[400_000:] + frame(b"second"))
    whole = data + frame(b"second")
    assert tapped.world.read(tapped.client, len(whole)) == whole
    assert tapped.open.upstream.changes_tap is False
    assert tapped.open.upstream.forward_to is (tapped.open.client.channel.write_half if after == "none" else None)
    frames, gaps = tapped.end()
    assert (frames[0].rule, frames[0].number, frames[0].body) == ("old", 0, body)
    assert numbers(frames[1:]) == ([] if after == "none" else [("response", 1, "new")])
    assert gaps == []


def test_a_frame_cut_through_that_began_untapped_is_not_seen_and_the_next_is(tmp_path):
    tapped = Tapped(tmp_path, cut_answers=True)
    data = frame(bytes(700_000))
    tapped.upstream.sendall(data[:300_000])
    tapped.world.until(lambda: tapped.open.upstream.channel.read_half.cut_at > 0)
    tapped.set(TapRule(name="new"))
    whole = data + frame(b"second")
    tapped.upstream.sendall(whole[300_000:])
    assert tapped.world.read(tapped.client, len(whole)) == whole
    frames, gaps = tapped.end()
    assert (numbers(frames), gaps) == ([("response", 1, "new")], [])
    assert tapped.writer.frames_matched == 1


def test_a_frame_cut_through_that_never_ends_is_a_gap_of_its_old_rule(tmp_path):
    tapped = Tapped(tmp_path, rules=(TapRule(name="old"),), cut_answers=True)
    tapped.upstream.sendall(frame(bytes(700_000))[:400_000])
    tapped.world.until(lambda: tapped.open.upstream.channel.read_half.cut_at > 0)
    tapped.set(TapRule(name="new"))
    reset(tapped.upstream)
    frames, gaps = tapped.end()
    assert (frames, [(gap.rule, gap.reason, gap.frames) for gap in gaps]) == ([], [("old", "partial_frame", 0)])


def test_a_connection_that_is_not_open_yet_gets_the_new_rules(tmp_path):
    tapped = Tapped(tmp_path, rules=(TapRule(name="old"),))
    world = tapped.world
    client, pair = world.client()
    world.until(lambda: pair.client.channel.ready_ns != 0)
    tapped.set(TapRule(name="new"))
    world.until(lambda: pair.state.value == "open")
    upstream, _ = world.server.accept()
    world.sockets.append(upstream)
    upstream.settimeout(2)
    passes(world, client, upstream, frame(b"asked"))
    passes(world, upstream, client, frame(b"answered"))
    for sock in (client, upstream, tapped.client, tapped.upstream):
        sock.close()
    world.until(lambda: len(world.rows) == 2)
    world.close()
    assert tapped.writer.flush_and_close(1000)
    assert numbers(list(read_frames(tapped.folder))) == [("request", 0, "new"), ("response", 0, "new")]


def test_the_clients_name_reaches_the_answers(tmp_path):
    def named(key: int, number: int, name: bytes) -> bytes:
        return request(key, 9, number, b"rest", struct.pack(">h", len(name)) + name)

    rules = (TapRule(name="r", directions=("response",), clients=("app-*",)),)
    tapped = Tapped(tmp_path, "kafka", rules=rules)
    for number, name in enumerate((b"app-1", b"batch", b"app-2"), 1):
        tapped.ask(named(3, number, name))
        tapped.reply(answer(number, b"y"))
    assert tapped.open.pairing.facts is not None
    tapped.set(TapRule(name="all"))
    assert tapped.open.pairing.facts is None
    tapped.ask(named(3, 4, b"batch"))
    tapped.reply(answer(4, b"y"))
    frames, _ = tapped.end()
    assert numbers(frames) == [("response", 0, "r"), ("response", 2, "r"), ("request", 3, "all"), ("response", 3, "all")]
    assert [item.correlation_id for item in frames] == [1, 3, None, 4]


def test_a_source_that_was_muted_for_the_log_goes_on_when_no_rule_mutes(tmp_path):
    tapped = Tapped(tmp_path, rules=(TapRule(name="keep", on_full="mute"),), queue_size=20_000)  # nobody writes: it is full after one frame
    tapped.ask(frame(bytes(30_000)))
    channel = tapped.open.client.channel
    assert channel.gated
    tapped.client.sendall(frame(b"second"))
    tapped.world.poll()
    assert channel.mute_in_force
    tapped.set(TapRule(name="drop"))
    assert not channel.gated
    assert tapped.world.read(tapped.upstream, 10) == frame(b"second")
    frames, gaps = tapped.end()
    assert (numbers(frames), [(gap.rule, gap.frames) for gap in gaps]) == ([("request", 0, "keep")], [("drop", 1)])


def test_the_log_says_which_rules_were_in_force(tmp_path):
    tapped = Tapped(tmp_path)
    tapped.world.relay.pairs.rules.begin(WALL_NS)
    tapped.set(TapRule(name="é", min_size=1))  # nothing was written yet: what held before held for nothing
    tapped.ask(frame(b"x"))
    tapped.set()
    tapped.set(TapRule(name="b"))
    tapped.ask(frame(b"y"))
    frames, _ = tapped.end()
    assert numbers(frames) == [("request", 0, "é"), ("request", 1, "b")]
    names = [[rule["name"] for rule in json.loads(text)] if text != "-" else "-" for text in tapped.texts()]
    assert names == [["é"], "-", [], ["b"], "-"]
    assert tapped.texts()[0] == tapped.texts()[0].replace(" ", "")


def test_without_a_log_rules_cannot_be_set(world, tmp_path):
    writer = TapWriter(TapConfig(directory=str(tmp_path)), "n", "0", "b")
    with pytest.raises(ValueError, match="no tap section"):
        world.relay.retap(TapRules((TapRule(name="a"),), writer))
    world.relay.retap(None)
