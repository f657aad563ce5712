"""Drain under traffic: what was read reaches the upstream, what it answers in time reaches the client, and what was not read is not ours."""

from typing import Any

import pytest

from framegate.proxy.network.write_half import HELD_MOST
from tests.fakes.accounts import Accounts
from tests.fakes.cases import each_of
from tests.fakes.talk import Talk
from tests.fakes.tap_read import read_frames, read_gaps
from tests.fakes.world import SECOND
from tests.proxy.relay.conftest import begin_drain

TIMEOUT_S = 8
QUEUE = 1 << 23  # bytes that wait for the log, so that none is dropped
PROTOCOLS = ["framed", "kafka"]


def drained(accounts: Accounts, after_s: int, **options: Any) -> Talk:
    """Talk for so long; then a drain has begun."""
    talk = Talk(accounts.world, each_turn=accounts.writer.write_queued, **options)
    talk.turns(after_s)
    begin_drain(accounts.world, TIMEOUT_S)
    return talk


def settle(accounts: Accounts, talk: Talk) -> None:
    """Everything that was read was served and answered, in order, and the log has all of it and no gap."""
    (row,) = accounts.settle()
    assert (talk.failure, talk.ended, talk.rest) == (None, True, b"")
    assert talk.served == list(range(1, row["frames"]["request"] + 1))
    assert talk.answered == talk.served
    assert list(read_gaps(accounts.folder)) == []
    assert len(list(read_frames(accounts.folder))) == 2 * len(talk.served)
    assert (row["cause"], row["lost"]["bytes"]) == ("drained", 0)


@pytest.mark.slow
@each_of("protocol", PROTOCOLS)
@each_of("size", [10, 30_000])
@each_of("window", [1, 5, 50])
def test_of_a_client_that_never_pauses_what_was_read_is_answered(make_accounts, protocol, size, window):
    """And it loses nothing, unless the answers to all that it has open are too large to be held."""
    accounts = make_accounts(protocol, queue_size=QUEUE, quiet_s=1)
    talk = drained(accounts, 1, window=window, burst=10 if size < 1000 else 4, size=size)
    before = talk.asked
    talk.until_over(TIMEOUT_S + 1)
    settle(accounts, talk)
    assert talk.asked > before
    assert talk.asked - len(talk.answered) <= (0 if window * size < HELD_MOST else window)  # those that it sees unanswered, of which none was read


@pytest.mark.slow
def test_a_kafka_client_whose_answers_are_later_than_the_quiet_time_gets_what_it_is_owed(make_accounts):
    accounts = make_accounts("kafka", queue_size=QUEUE, quiet_s=1)
    talk = drained(accounts, 2, window=20, burst=2, delay_ns=SECOND)
    talk.until_over(TIMEOUT_S)
    settle(accounts, talk)


@pytest.mark.slow
@each_of("protocol", PROTOCOLS)
def test_answers_that_do_not_come_in_time_are_not_waited_for_but_what_was_read_is_served(make_accounts, protocol):
    accounts = make_accounts(protocol, queue_size=QUEUE)
    talk = drained(accounts, 1, window=1 << 30, burst=10, delay_ns=1000 * SECOND)
    talk.until_over(TIMEOUT_S + 2)
    (row,) = accounts.settle()
    assert talk.served == list(range(1, row["frames"]["request"] + 1))
    assert (talk.failure, talk.ended, talk.rest) == (None, True, b"")
    assert list(read_gaps(accounts.folder)) == []
    assert (row["cause"], row["lost"]["bytes"]) == ("drained" if protocol == "framed" else "drain_timeout", 0)


@pytest.mark.slow
@each_of("protocol", PROTOCOLS)
def test_what_the_upstream_does_not_take_is_lost_and_counted(make_accounts, protocol):
    """It does not read until the drain is over: then it finds what the sockets held, and the row says what it does not."""
    accounts = make_accounts(protocol, queue_size=QUEUE)
    talk = drained(accounts, 2, window=1 << 30, burst=20, size=30_000, reads=False)
    assert talk.pair.upstream.channel.pending_send > 0
    talk.until_over(TIMEOUT_S + 2)
    talk.reads = True
    talk.turns(1)
    (row,) = accounts.settle()
    assert (talk.failure, talk.ended) == (None, True)
    assert row["cause"] == "drain_timeout"
    begun = row["bytes"]["request"] - talk.frame_size * row["frames"]["request"]
    assert 0 <= begun < talk.frame_size
    assert talk.served == list(range(1, len(talk.served) + 1))
    assert len(talk.served) < row["frames"]["request"] < talk.asked
    assert len(talk.served) * talk.frame_size + len(talk.rest) == row["bytes"]["request"] - row["lost"]["bytes"]
    gaps = [(gap.reason, gap.frames, gap.bytes) for gap in read_gaps(accounts.folder)]
    assert gaps == ([("partial_frame", 0, begun)] if begun else [])  # every whole one is in the log
    assert len(list(read_frames(accounts.folder))) == row["frames"]["request"]


@pytest.mark.slow
@each_of("protocol", PROTOCOLS)
@each_of(("late", "options"), [("reads", {"window": 1 << 30, "burst": 20}), ("hears", {"window": 200, "burst": 5, "delay_ns": SECOND // 200})])
def test_an_upstream_that_reads_late_gets_all_and_no_reset_overtakes_answers_that_a_client_reads_late(make_accounts, protocol, late, options):
    """The client sends on, unread, and takes longer than a second: the end waits for it until the deadline. Its answers take 5 ms: at a
    moment when all are given, the pair would end.
    """
    accounts = make_accounts(protocol, queue_size=QUEUE)
    talk = drained(accounts, 2, size=30_000, **{**options, "reads": late != "reads"})
    setattr(talk, late, False)
    talk.turns(TIMEOUT_S - 2)
    assert not accounts.world.rows
    setattr(talk, late, True)
    talk.until_over(4)
    settle(accounts, talk)
