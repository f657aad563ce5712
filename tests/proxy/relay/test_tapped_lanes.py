"""framegate.proxy.relay: frames that C passes on once the tap has seen them. What the log has is the same without lanes."""

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from framegate.proxy.config.limits import RateLimits
from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.network.lanes import HAS_FAST_PATH
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.tallies import Reserve, Tally
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.cases import each_of
from tests.fakes.crowd import MIB
from tests.fakes.lanes import PARTLY_TAKEN, give_partly_taken, opened, served
from tests.fakes.limited import limits
from tests.fakes.tap_read import Frame, read_frames, read_gaps
from tests.fakes.world import World, frame
from tests.proxy.relay.conftest import finish, passes, tapping

pytestmark = pytest.mark.skipif(not HAS_FAST_PATH, reason="the data path is not compiled")


def log_of(world: World, folder: str) -> list[Frame]:
    """End the world, and read its log, which has no gap."""
    writer = world.relay.pairs._writer
    assert writer is not None
    world.close()
    assert writer.flush_and_close(1000)
    assert list(read_gaps(folder)) == []
    return list(read_frames(folder))


def bodies(frames: list[Frame], direction: str) -> list[bytes]:
    """The bodies of a direction, whose numbers are without a gap."""
    found = [item for item in frames if item.direction == direction]
    assert [item.number for item in found] == list(range(len(found)))
    return [bytes(item.body) for item in found]


@each_of("rule", (TapRule(name="all"), TapRule(name="some", max_size=1 << 20)), fresh={"folder": TemporaryDirectory})
def test_lanes_stay_open_and_each_frame_is_in_the_log_once(make_either, folder: str, rule: TapRule):
    world = make_either("framed", **tapping(Path(folder), rule))
    client, upstream, pair = opened(world)
    sent, replied = [b"any", b"any"], [b"any", b"any"]
    for number in range(20):
        batch = [bytes([number]) * size for size in (0, 1, number * 100, 3)]
        passes(world, client, upstream, b"".join(map(frame, batch)))
        upstream.sendall(frame(batch[2]) + frame(b"")[:2])
        assert world.read(client, 4 + len(batch[2])) == frame(batch[2])
        upstream.sendall(frame(b"")[2:])
        assert world.read(client, 4) == frame(b"")
        assert served(world, pair.client)
        assert served(world, pair.upstream)
        sent += batch
        replied += [batch[2], b""]
    finish(world, client, upstream)
    assert world.row["frames"] == {"request": len(sent), "response": len(replied)}
    assert world.row["bytes"]["request"] == sum(len(body) + 4 for body in sent)
    frames = log_of(world, folder)
    assert (bodies(frames, "request"), bodies(frames, "response")) == (sent, replied)


def test_one_direction_may_be_tapped(make_plain, tmp_path):
    world = make_plain("framed", **tapping(tmp_path, TapRule(name="answers", directions=("response",))))
    client, upstream, pair = opened(world)
    passes(world, client, upstream, frame(b"ask"))
    passes(world, upstream, client, frame(b"answer"))
    assert served(world, pair.client)
    assert served(world, pair.upstream)
    finish(world, client, upstream)
    assert bodies(log_of(world, str(tmp_path)), "response") == [b"any", b"any", b"answer"]


def test_a_quota_that_is_set_and_taken_back_closes_the_lane_meanwhile(make_plain, tmp_path):
    world = make_plain("framed", **tapping(tmp_path))
    client, upstream, pair = opened(world)
    for rate, lanes in ((10_000, False), (0, True), (10_000, False)):
        client.sendall(frame(b"begun")[:6])
        world.poll()
        world.relay.pairs.quotas.set_limits(limits(listener=RateLimits(request_bytes_rate=rate)))
        pair.client.join_quotas()
        assert not served(world, pair.client)
        client.sendall(frame(b"begun")[6:])
        assert world.read(upstream, 9) == frame(b"begun")
        passes(world, client, upstream, frame(b"more"))
        assert served(world, pair.client) is lanes
    finish(world, client, upstream)
    assert bodies(log_of(world, str(tmp_path)), "request") == [b"any", b"any"] + [b"begun", b"more"] * 3


def test_rules_that_change_hold_from_the_next_frame_on(make_plain, tmp_path):
    options = tapping(tmp_path, TapRule(name="r0"))
    world = make_plain("framed", **options)
    client, upstream, pair = opened(world)
    for number in range(1, 9):
        client.sendall(frame(b"old") + frame(b"new")[:5])
        assert world.read(upstream, 7) == frame(b"old")
        rules = (TapRule(name=f"r{number}"),) if number % 3 else ()
        world.relay.retap(TapRules(rules, options["writer"]))
        client.sendall(frame(b"new")[5:])
        assert world.read(upstream, 7) == frame(b"new")
        passes(world, client, upstream, frame(b"more"))
        passes(world, client, upstream, frame(b"more"))
        assert served(world, pair.client)
    finish(world, client, upstream)
    found = [(item.number, item.rule) for item in log_of(world, str(tmp_path)) if item.direction == "request"]
    expected = [(0, "r0"), (1, "r0")]
    for number in range(1, 9):
        first = 4 * number - 2
        expected += [(first, f"r{number - 1}")] if (number - 1) % 3 or number == 1 else []
        expected += [(first + more, f"r{number}") for more in (1, 2, 3)] if number % 3 else []
    assert found == expected


@pytest.mark.extended
@each_of("reported", (False, True))
@each_of("sizes", PARTLY_TAKEN, fresh={"folder": TemporaryDirectory})
def test_what_the_peer_does_not_take_is_in_the_log_once_and_in_order(make_crowd, folder: str, sizes: tuple[int, ...], reported: bool):
    crowd = make_crowd(cut_requests=True, limit=MIB, **tapping(Path(folder), queue_size=256 * MIB))
    give_partly_taken(crowd, sizes, reported=reported)
    found = [len(body) for body in bodies(log_of(crowd, folder), "request")]
    assert len(found) == 20 * (2 + len(sizes))
    assert found[: 2 + len(sizes)] == found[-2 - len(sizes) :]


def test_a_log_that_is_full_leaves_gaps_and_the_lane_open(make_plain, tmp_path):
    options = tapping(tmp_path, queue_size=65536, flush_size=4096)
    world, writer = make_plain("framed", **options), options["writer"]
    client, upstream, pair = opened(world)
    for _ in range(40):
        passes(world, client, upstream, frame(bytes(4000)))
    assert served(world, pair.client)
    assert writer.dropped_queue_full > 20
    finish(world, client, upstream)
    world.close()
    assert writer.flush_and_close(1000)
    numbers = [item.number for item in read_frames(str(tmp_path)) if item.direction == "request"]
    lost = [range(gap.first_frame, gap.first_frame + gap.frames) for gap in read_gaps(str(tmp_path))]
    assert sorted([*numbers, *itertools.chain(*lost)]) == list(range(42))


def test_a_rule_that_mutes_opens_no_lane(make_plain, tmp_path):
    world = make_plain("framed", **tapping(tmp_path, TapRule(name="all", on_full="mute")))
    client, upstream, pair = world.pair()
    for _ in range(3):
        passes(world, client, upstream, frame(b"ask"))
    assert not served(world, pair.client)


class Failing(Reserve):
    """Fails once, in place of the reservation number 3."""

    def __init__(self) -> None:
        self.count = 0

    def reserve(self, tally: Tally) -> None:
        self.count += 1
        if self.count == 3:
            raise RuntimeError("the cells are gone")


def test_an_exception_of_the_tap_ends_its_connection_and_nothing_is_sent(make_plain, tmp_path):
    writer = TapWriter(TapConfig(directory=str(tmp_path)), "n", "0", "b", reserve=Failing())
    world = make_plain("framed", rules=TapRules((TapRule(name="all"),), writer), writer=writer)
    client, upstream, _ = opened(world)
    client.sendall(frame(b"") * 100)
    assert world.ended(upstream) == b""
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["frames"]["request"]) == ("internal", 102)
