"""Jobs on real pairs: slices, pages, and answers that wait until what was asked for is in force."""

import contextlib
import dataclasses
import struct

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.cells import CellLayout
from framegate.proxy.config.limits import LimitsConfig
from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.network import mute
from framegate.proxy.relay import ending, handling
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.cases import each_of
from tests.fakes.changes import change, change_to
from tests.fakes.handled import HandledWorld
from tests.fakes.runs import run_of
from tests.fakes.steered import Steered
from tests.fakes.world import SECOND, frame


@pytest.fixture
def steered(world):
    return Steered(world=world)


def clients(steered, count: int) -> list:
    return [steered.world.client()[1] for _ in range(count)]


def step(steered) -> None:
    """One slice of the oldest job."""
    steered.commands.work(0, lambda: 1)


def steps(steered, between=lambda: None) -> int:
    """Work on all jobs; the number of slices. ``between`` is called after the first."""
    count = 0
    while steered.commands.busy:
        step(steered)
        if count == 0:
            between()
        count += 1
    return count


def abort(steered, *pairs) -> None:
    for pair in pairs:
        ending.abort(pair, Cause.ADMIN, "", "internal")
    steered.world.until(lambda: all(pair.state.value == "closed" for pair in pairs))


def test_a_change_with_many_listeners_is_prepared_in_slices_and_can_be_aborted_between_them(steered):
    config = steered.settings.config
    added = [dataclasses.replace(config.listeners[0], name=f"l{number}") for number in range(100)]
    after = dataclasses.replace(config, listeners=(*config.listeners, *added))
    asked = change_to(config, after, cells=steered.settings.in_force.layout.after(after, set()).wire)

    def handle(kind: str, number: int, **fields: object) -> list[str]:
        """The types of the answers so far."""
        steered.commands.handle({"type": kind, "id": number, **fields})
        found = [answer["type"] for answer in steered.answers]
        steered.answers.clear()
        return found

    assert handle("prepare", 1, change=asked) == [], "it is not done at once"
    step(steered)
    assert handle("prepare", 2, change={}) == ["refused"]
    assert handle("abort", 1) == ["refused", "aborted"]
    assert not steered.commands.busy
    assert handle("list", 3) == handle("prepare", 4, change=asked) == []
    assert steps(steered) > 50
    assert [answer["id"] for answer in steered.answers] == [4, 3], "before what else waits"
    handle("commit", 4)
    steered.work()
    assert len(steered.settings.routes) == len(after.listeners)
    handle("prepare", 5, change=change_to(after, config))
    steered.work()
    handle("commit", 5)
    steered.work()
    steered.answers.clear()
    assert handle("prepare", 6, change={**asked, "cells": CellLayout.of(after).wire}) == []
    steered.commands.end()
    assert [answer["type"] for answer in steered.answers] == ["prepared"], "the end of one processor does not have the others refuse it"


def begun(steered, size: int = 6, body: bytes = b"begun"):
    """A client that has sent so many bytes of a frame, and its pair."""
    client, upstream, pair = steered.world.pair()
    client.sendall(frame(body)[:size])
    steered.world.until(lambda: pair.client.channel.staged == size)
    return client, upstream, pair


def test_long_lists_and_bulk_commands_are_made_in_slices_and_a_command_to_lift_another_action_affects_no_pair(steered):
    pairs = clients(steered, 20)
    steered.commands.handle({"type": "list", "id": 1, "after": 0, "limit": 100, "listener": None})
    assert steps(steered, lambda: abort(steered, pairs[10])) == 3
    assert [row["id"] for row in steered.answers[0]["rows"]] == [pair.id for pair in pairs if pair is not pairs[10]], "without the one that closed"
    steered.commands.handle({"type": "unmute", "id": 1, "lifts": 5})
    assert steps(steered) == 3
    assert steered.answers[1] == {"type": "result", "id": 1, "affected": [], "missing": [], "undone": []}
    assert {pair.client.channel.mute_causes for pair in pairs if pair is not pairs[10]} == {0}


def begin(steered, count: int) -> list:
    """Pairs whose clients have each begun a frame, the later ones of more bytes."""
    return [begun(steered, 100 * (number + 1), bytes(2000))[2] for number in range(count)]


def held_by(pairs) -> list[tuple[int, int]]:
    """What the clients' frames hold and the pairs' ids, most first, the older pair before the younger."""
    return sorted(((int(pair.client.channel.read_half.receive.booked), int(pair.id)) for pair in pairs), key=lambda item: (-item[0], item[1]))


def test_the_largest_holders_come_first_up_to_the_limit(steered):
    steered.world.pair()  # holds nothing
    held = held_by(begin(steered, 4))
    for limit in (1, 2, 4, 100):
        rows = steered.ask("holders", limit=limit)["rows"]
        assert [(row["bytes"], row["id"]) for row in rows] == held[:limit]
    assert {(row["listener"], row["side"], row["peer"], row["kind"]) for row in rows} == {("l", "downstream", "192.0.2.1:1", "begun")}
    for limit in (0, 101, -1):
        assert steered.ask("holders", limit=limit)["type"] == "error"


def test_what_clients_used_is_reported_once_up_to_the_limit_with_the_totals_of_listeners(steered):
    sizes, total = (100, 300, 200), 0
    for number, size in enumerate(sizes):
        client, upstream, _ = steered.world.pair(f"192.0.2.{number}:1")
        client.sendall(frame(bytes(size)))
        total += len(steered.world.read(upstream, size + 4))
    answer = steered.ask("clients", limit=2)
    assert [row for row in answer["rows"] if row["measure"] == "bytes"] == [
        {"measure": "bytes", "client": ["l", "ANONYMOUS", "", f"192.0.2.{number}"], "amount": size + 4} for number, size in ((1, 300), (2, 200))
    ]
    assert answer["totals"] == [{"measure": "bytes", "client": ["l"], "amount": total}, {"measure": "frames", "client": ["l"], "amount": 3}]
    assert steered.ask("clients", limit=2) == {"type": "result", "rows": [], "totals": []}
    for limit in (0, 101, -1):
        assert steered.ask("clients", limit=limit)["type"] == "error"


def test_a_side_counts_for_each_kind_and_says_why_it_is_not_read(steered):
    world = steered.world
    client, upstream, pair = world.pair()
    world.fill(client)
    upstream.sendall(frame(bytes(2000))[:500])
    world.until(lambda: pair.upstream.channel.staged == 500)
    rows = {(row["side"], row["kind"]): row for row in steered.ask("holders", limit=10)["rows"]}
    pending = rows["upstream", "pending"]
    assert pending["bytes"] == pair.upstream.channel.write_half.pending.booked > 10_000
    assert pending["peer"] == pair.endpoint
    assert rows["upstream", "begun"]["bytes"] == pair.upstream.channel.read_half.receive.booked > 0
    assert sum(row["bytes"] for row in rows.values()) == world.pool.used == world.pool.begun + world.pool.pending
    assert (pending["muted"], pending["muted_ns"]) == ([], 0)
    world.pass_time(1)
    pair.upstream.channel.mute(mute.TAP)
    (begun,) = (row for row in steered.ask("holders", limit=10)["rows"] if row["kind"] == "begun" and row["side"] == "upstream")
    assert (begun["muted"], begun["muted_ns"], begun["last_active_ns"]) == (["tap"], world.clock.ns, world.clock.ns - SECOND)
    pair.upstream.channel.unmute(mute.TAP)


def test_a_slow_client_of_a_frame_that_is_cut_through_is_a_holder_of_0_bytes(make):
    steered = Steered(world=make(limit=1 << 30, answer_limit=1 << 30, cut_answers=True))
    client, upstream, pair = steered.world.pair()
    upstream.setblocking(False)
    upstream.send(struct.pack(">i", 64 << 20))
    while not pair.client.channel.write_half.room_wanted:
        with contextlib.suppress(BlockingIOError):
            upstream.send(bytes(1 << 20))
        steered.world.poll(1)
    assert pair.upstream.channel.mute_causes == mute.PEER
    (row,) = steered.ask("holders", limit=10)["rows"]
    assert (row["id"], row["side"], row["kind"], row["bytes"], steered.world.pool.used) == (pair.id, "downstream", "pending", 0, 0)
    client.setblocking(False)
    while pair.client.channel.write_half.room_wanted:
        with contextlib.suppress(BlockingIOError):
            client.recv(1 << 22)
        steered.world.poll(1)
    assert steered.ask("holders", limit=10)["rows"] == [], "it reads again"


def test_frames_that_wait_for_a_handler_count_for_their_connection():
    world = HandledWorld()
    _, pair = world.served()
    booked = handling.book(pair.client, run_of([bytes(2000)]))
    (row,) = Steered(world=world).ask("holders", limit=10)["rows"]
    assert (row["id"], row["side"], row["kind"], row["bytes"]) == (pair.id, "downstream", "begun", booked)
    handling.release(pair.client, booked)
    world.close()


def test_holders_are_searched_in_slices_without_pairs_that_close_meanwhile(steered):
    pairs = begin(steered, 20)
    steered.commands.handle({"type": "holders", "id": 1, "limit": 3})
    assert steps(steered, lambda: abort(steered, pairs[19])) == 3
    assert [(row["bytes"], row["id"]) for row in steered.answers[0]["rows"]] == held_by(pairs[:19])[:3]


@each_of(
    ("command", "answer"),
    [
        ({"type": "holders", "limit": 3}, {"type": "error", "error": "the processor ends"}),
        (
            {"type": "access", "after": 0, "limit": 9, "every_ms": 1, "since_ns": 0, "until_ns": 1 << 62},
            {"type": "error", "error": "the processor ends"},
        ),
        ({"type": "evict", "count": 3, "spared": None}, {"type": "result", "affected": []}),
    ],
    fresh={"steered": Steered},
)
def test_the_end_answers_what_is_not_done(steered, command, answer):
    clients(steered, 20)
    steered.commands.handle({"id": 1, **command})
    step(steered)
    steered.commands.end()
    assert (steered.answers, steered.access) == ([{"id": 1, **answer}], [])
    steered.world.close()


def test_mute_is_answered_when_no_further_header_will_be_read(steered):
    client, upstream, pair = begun(steered)
    _, _, other = steered.world.pair()
    steered.commands.handle({"type": "mute", "id": 1, "connections": [int(other.id), int(pair.id)], "reason": "why"})
    steered.work()
    assert steered.answers == []
    assert (pair.reason, other.client.channel.mute_causes) == ("why", mute.ADMIN)
    client.sendall(frame(b"begun")[6:])
    assert steered.world.read(upstream, 9) == frame(b"begun")
    steered.commands.pair_changed()
    assert steered.answers == [{"type": "result", "id": 1, "affected": [int(other.id), int(pair.id)], "missing": [], "undone": []}]


def test_a_mute_that_waits_ends_with_its_pair_and_is_undone_by_an_unmute(steered):
    _, _, pair = begun(steered)
    steered.commands.handle({"type": "mute", "id": 1, "connections": [int(pair.id)]})
    steered.work()
    steered.commands.handle({"type": "unmute", "id": 2, "connections": [int(pair.id)]})
    steered.work()
    lists = {answer["id"]: (answer["affected"], answer["undone"]) for answer in steered.answers}
    assert lists == {1: ([], [int(pair.id)]), 2: ([int(pair.id)], [])}
    steered.answers.clear()
    steered.commands.handle({"type": "mute", "id": 2, "connections": [int(pair.id), 99]})
    steered.work()
    ending.abort(pair, Cause.ADMIN, "", "internal")
    steered.world.poll()
    steered.commands.pair_changed()
    assert steered.answers == [{"type": "result", "id": 2, "affected": [], "missing": [99, int(pair.id)], "undone": []}]


def test_unmute_takes_the_admin_cause_away_and_no_other(steered):
    _, _, pair = steered.world.pair()
    channel = pair.client.channel
    channel.mute(mute.ADMIN)
    channel.mute(mute.TAP)
    assert steered.ask("unmute", connections=[int(pair.id)])["affected"] == [int(pair.id)]
    assert channel.mute_causes == mute.TAP


def test_a_pair_whose_end_has_begun_is_missing(steered):
    _, _, pair = steered.world.pair()
    ending.end(pair, Cause.IDLE, "", "downstream")
    for verb in ("mute", "unmute", "close"):
        assert steered.ask(verb, connections=[int(pair.id)]) == {"type": "result", "affected": [], "missing": [int(pair.id)], "undone": []}
    assert pair.client.channel.mute_causes == 0


def test_the_end_answers_what_is_begun_and_what_is_not(steered):
    ids = [int(pair.id) for _, _, pair in (begun(steered), *(steered.world.pair() for _ in range(19)))]
    for number in (1, 2):
        steered.commands.handle({"type": "mute", "id": number, "connections": [*ids, 99]})
    steered.commands.handle({"type": "list", "id": 3})
    step(steered)
    steered.commands.end()
    assert steered.answers == [
        {"type": "result", "id": 1, "affected": ids[1:8], "missing": [99], "undone": [ids[0], *ids[8:]]},
        {"type": "result", "id": 2, "affected": [], "missing": [99], "undone": ids},
        {"type": "error", "id": 3, "error": "the processor ends"},
    ]
    assert not steered.commands.busy
    steered.commands.end()
    assert len(steered.answers) == 3


def test_an_error_with_one_pair_costs_that_pair_and_is_a_fault(steered):
    world = steered.world
    (client, _, bad), (_, _, good) = world.pair(), world.pair()
    world.blind(client, bad, mute.ADMIN)
    assert steered.ask("unmute", connections=[int(bad.id), int(good.id)]) == {
        "type": "result",
        "affected": [int(good.id)],
        "missing": [],
        "undone": [int(bad.id)],
    }
    world.until(lambda: world.rows)
    assert (world.row["id"], world.row["cause"]) == (int(bad.id), "internal")
    assert {fault.place for fault in world.selector.faults.take()} == {"command", "channel"}


@pytest.fixture
def tapped(tmp_path):
    """With a tap and the rule all."""
    steered = Steered(TapWriter(TapConfig(directory=str(tmp_path)), "n", "0", "b"))
    yield steered
    steered.world.close()


def put(steered, change: dict) -> None:
    """Prepare a change and ask for the commit; nothing has been worked on."""
    steered.commands.handle({"type": "prepare", "id": 2, "change": change})
    assert steered.answers.pop() == {"type": "prepared", "id": 2}
    steered.commands.handle({"type": "commit", "id": 2})


def gated(pairs) -> list[bool]:
    """Whose client is not read while the log is full: what a rule with ``on_full: mute`` asks for."""
    return [pair.client.channel.gated for pair in pairs]


@pytest.mark.parametrize("values", [{"rules": (TapRule(name="some", on_full="mute"),)}, {"node": LimitsConfig(request_bytes_rate=1000)}])
def test_open_pairs_follow_rules_and_limits_in_slices_and_the_commit_is_answered_after_the_last(tapped, values):
    pairs = [tapped.world.pair()[2] for _ in range(20)]
    tapped.commands.handle({"type": "list", "id": 1, "after": 0, "limit": 100, "listener": None})
    put(tapped, change(tapped.settings.config, **values))
    late = tapped.world.pair()[2]
    assert gated([*pairs, late]) == [False] * 20 + [True]
    step(tapped)
    assert (gated(pairs), tapped.answers) == ([True] * 8 + [False] * 12, [])
    if "node" in values:
        abort(tapped, pairs.pop(15))
    else:
        ending.end(pairs.pop(15), Cause.ADMIN, "", "internal")
    step(tapped)
    step(tapped)
    assert (gated(pairs), tapped.answers) == ([True] * 19, [{"type": "committed", "id": 2}])
    assert {pair.upstream.channel.gated for pair in pairs} == {"rules" in values}, "a rule has both directions, and this limit has one"
    tapped.work()
    assert [answer["id"] for answer in tapped.answers] == [2, 1]


def test_the_end_of_the_processor_answers_a_commit_whose_pairs_have_not_all_followed(tapped):
    clients(tapped, 20)
    put(tapped, change(tapped.settings.config, rules=()))
    step(tapped)
    tapped.commands.end()
    assert tapped.answers == [{"type": "committed", "id": 2}]


def idle_since(pair, client_ns, upstream_ns=0):
    """As if no byte had passed since then; the times count from when the pair was opened."""
    for leg, passed_ns in ((pair.client, client_ns), (pair.upstream, upstream_ns)):
        if leg.channel is not None:
            leg.channel.last_active_ns = pair.opened_ns + passed_ns


def test_the_idlest_pairs_are_closed_the_older_first(steered):
    """Number 194, on a processor's side."""
    pairs = clients(steered, 30)
    for number, pair in enumerate(pairs):
        idle_since(pair, 1_000 + number // 2)
    idle_since(pairs[29], 7)
    assert steered.ask("evict", count=4, spared=None) == {"type": "result", "affected": [pairs[index].id for index in (29, 0, 1, 2)]}
    ended = [pair for pair in pairs if pair.cause is not None]
    assert ended == [*pairs[:3], pairs[29]]
    assert {(pair.cause, pair.side) for pair in ended} == {(Cause.LIMIT, "internal")}
    assert steered.ask("evict", count=100, spared=None)["affected"] == [pair.id for pair in pairs[3:29]], "those that end are not counted again"
    assert [steered.ask("evict", count=count, spared=None)["type"] for count in (0, -1, 10_001)] == ["error"] * 3


def test_a_pair_is_as_idle_as_the_less_idle_of_its_sides(steered):
    pairs = [steered.world.pair()[2] for _ in range(2)]
    idle_since(pairs[0], 1, 9)
    idle_since(pairs[1], 8, 2)
    assert steered.ask("evict", count=1, spared=None)["affected"] == [pairs[1].id]


def test_a_pair_that_moved_since_it_was_visited_or_ended_is_not_evicted(steered):
    pairs = clients(steered, 8)
    for pair in pairs:
        idle_since(pair, 5)
    steered.commands.handle({"type": "evict", "id": 1, "count": 3, "spared": None})
    step(steered)  # all are looked at
    idle_since(pairs[1], 6)
    ending.end(pairs[2], Cause.ADMIN, "", "internal")
    steered.work()
    assert steered.answers.pop() == {"type": "result", "id": 1, "affected": [pairs[0].id]}
    assert [pair.cause for pair in pairs] == [Cause.LIMIT, None, Cause.ADMIN] + [None] * 5


ACCESS = {"every_ms": 10_000, "since_ns": 0}


def access(steered, after: int = 0, limit: int = 100, until_s: int = 20) -> tuple[list[int], int]:
    """The ids of the rows that are told, and where to go on."""
    steered.access.clear()
    answer = steered.ask("access", after=after, limit=limit, until_ns=int(steered.world.clock.ns) + until_s * SECOND, **ACCESS)
    return [int(line.split(" ")[1]) for line in steered.access], answer["next"]


def test_rows_of_pairs_that_are_still_open_come_in_pages_once_they_are_old_enough(steered):
    pairs = clients(steered, 20)
    assert (access(steered, until_s=9), len(access(steered, until_s=13)[0])) == (([], 0), 20)
    for limit, pages in ((6, [6, 6, 6, 2]), (19, [19, 1]), (20, [20]), (21, [20])):
        seen, after = [], 0
        while not seen or after:
            page, after = access(steered, after, limit)
            seen.append(page)
        assert [len(page) for page in seen] == pages
        assert [number for page in seen for number in page] == [pair.id for pair in pairs]


def test_a_pair_that_closed_after_it_was_visited_has_no_access_row(steered):
    """Its closed row is sent before; a later row would say that it is open."""
    pairs = clients(steered, 12)
    steered.commands.handle({"type": "access", "id": 1, "after": 0, "limit": 100, "until_ns": int(steered.world.clock.ns) + 20 * SECOND, **ACCESS})
    steps(steered, lambda: abort(steered, pairs[0], pairs[10]))
    assert [int(line.split(" ")[1]) for line in steered.access] == [pair.id for pair in pairs if pair not in (pairs[0], pairs[10])]


def test_an_action_is_lifted_where_it_was_the_last_one(steered):
    pairs = [pair for _, _, pair in (steered.world.pair() for _ in range(4))]
    ids = [int(pair.id) for pair in pairs]
    for verb, lift in (("mute", "unmute"), ("throttle", "throttle")):
        rates = {"request_rate": 1000} if verb == "throttle" else {}
        assert steered.ask(verb, connections=ids[:3], action=7, reason="first", **rates)["affected"] == ids[:3]
        steered.ask(verb, connections=[ids[0]], action=8, **rates)
        steered.ask(verb, connections=[ids[1]], **rates)
        assert steered.ask(lift, lifts=7) == {"type": "result", "affected": [ids[2]], "missing": [], "undone": []}
        assert steered.ask(lift, lifts=7)["affected"] == []
        rows = steered.ask("list")["rows"]
        assert [bool(row["muted"] if verb == "mute" else row.get("throttle")) for row in rows] == [True, True, False, False]
    assert [pair.client.channel.gated for pair in pairs] == [True, True, False, False]


def test_the_end_answers_which_pairs_still_have_an_action(steered):
    ids = [int(pair.id) for pair in clients(steered, 20)]
    steered.ask("mute", connections=ids[:12], action=7)
    steered.commands.handle({"type": "unmute", "id": 1, "lifts": 7})
    step(steered)
    steered.commands.end()
    assert steered.answers == [{"type": "result", "id": 1, "affected": ids[:8], "missing": [], "undone": ids[8:12]}]


def test_open_pairs_of_revoked_users_end_before_the_commit_is_answered(steered):
    for name, closes in (("other", False), ("alice", True)):
        _, _, pair = steered.world.pair()
        pair.client.channel.principal = "alice"
        pair.client.channel.identity.mechanism = "PLAIN"
        assert steered.ask("prepare", change={"revoked": {"l": {"users": [name], "serials": []}}}) == {"type": "prepared"}
        steered.world.route.revoked.add([name], [], steered.world.clock.ns)  # the settings' own route has no pairs here
        assert steered.ask("commit") == {"type": "committed"}
        assert (pair.state.value != "open") is closes
    assert steered.ask("prepare", change={"revoked": {"x": {"users": [], "serials": []}}}) == {"type": "refused", "reason": "no listener x"}
    steered.world.pass_time(1.1)
    assert {row["cause"] for row in steered.world.rows} == {"session_expired"}
