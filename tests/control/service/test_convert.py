"""Rows become messages; the words are the same everywhere."""

import typing

import pytest

from framegate.control.service.convert import channel_message, channel_number, duration
from framegate.control.status import ProcessorState
from framegate.control.v1 import channel_service_pb2 as channel_pb2
from framegate.control.v1 import pool_service_pb2 as pool_pb2
from framegate.proxy.cause import Cause
from framegate.proxy.cells import CAUSES
from framegate.proxy.network import mute
from framegate.proxy.relay.state import PairState
from tests.fakes.plane import channel_row, closed_row


def words(names: list[str], prefix: str) -> list[str]:
    return [name.removeprefix(prefix).lower() for name in names if name != f"{prefix}UNSPECIFIED"]


def test_causes_and_states_are_the_same_words_in_the_api_the_cells_and_the_network() -> None:
    assert words(channel_pb2.Cause.keys(), "CAUSE_") == [cause.value for cause in Cause] == list(CAUSES)
    assert set(words(channel_pb2.MuteCause.keys(), "MUTE_CAUSE_")) == {name for name, _ in mute.CAUSES}
    assert set(words(pool_pb2.Processor.State.keys(), "STATE_")) == set(typing.get_args(ProcessorState))
    assert set(words(channel_pb2.Channel.State.keys(), "STATE_")) == {state.value for state in PairState} | {"draining"}


def test_every_cause_of_a_closed_row_arrives() -> None:
    for cause in Cause:
        close = channel_message(closed_row("0-1-1", cause.value)).close
        assert channel_pb2.Cause.Name(close.cause) == f"CAUSE_{cause.value.upper()}"


def test_a_closed_row_says_what_was_lost_and_what_muted() -> None:
    message = channel_message(closed_row("0-1-1", "peer_reset"))
    (mute_summary,) = message.close.mutes
    assert (message.close.detail, message.close.side, message.close.lost_bytes) == ("said the peer", channel_pb2.SIDE_DOWNSTREAM, 5)
    assert (mute_summary.cause, mute_summary.count, mute_summary.duration.nanos) == (channel_pb2.MUTE_CAUSE_PEER, 2, 1_500_000)
    assert message.close.state == channel_pb2.Channel.STATE_OPEN
    assert message.tls.version == "TLSv1.3"


def test_the_row_that_stands_for_a_dead_processors_connection_is_good_enough() -> None:
    unknown = {"request": None, "response": None}
    gone = {"principal": None, "tls": None, "endpoint": None, "frames": unknown, "bytes": unknown, "lost": {"bytes": None, **unknown}}
    message = channel_message(closed_row("0-1-1", "processor_died", state="", side="internal", mutes={}, **gone))
    assert (message.close.cause, message.close.state) == (channel_pb2.CAUSE_PROCESSOR_DIED, channel_pb2.Channel.STATE_UNSPECIFIED)
    assert [message.HasField(name) for name in ("request", "response", "tls")] == [False] * 3
    assert not message.close.HasField("lost_bytes")


def test_an_open_row_without_tls_or_principal_has_neither() -> None:
    message = channel_message(channel_row("0-1-1", tls=None, principal=None))
    assert (message.HasField("tls"), message.principal, message.sasl_mechanism, message.HasField("close")) == (False, "", "", False)
    assert channel_message(channel_row("0-1-1", mechanism="PLAIN")).sasl_mechanism == "PLAIN"


def test_a_value_of_zero_is_present() -> None:
    nothing = {"request": 0, "response": 0}
    message = channel_message(channel_row("0-1-1", frames=nothing, bytes=nothing, opened_ns=0, last_active_ns=0))
    assert all(message.HasField(name) for name in ("request", "response", "open_time", "last_active_time"))


@pytest.mark.parametrize("key", ["muted", "muted_upstream"])
def test_a_mute_cause_or_a_state_that_the_api_does_not_know_is_our_bug(key: str) -> None:
    with pytest.raises(KeyError):
        channel_message(channel_row("0-1-1", **{key: ["boredom"]}))
    with pytest.raises(KeyError):
        channel_message(channel_row("0-1-1", state="bored"))


def test_a_text_that_is_not_an_id_is_reported() -> None:
    complaints: list[str] = []
    assert channel_number("1-2-3", "id", lambda field, text: complaints.append(field)) == 1 << 57 | 2 << 29 | 3
    assert channel_number("1-2", "id", lambda field, text: complaints.append(field)) is None
    assert complaints == ["id"]


def test_a_duration_is_seconds_and_nanoseconds() -> None:
    assert (duration(2_500_000_000).seconds, duration(2_500_000_000).nanos) == (2, 500_000_000)
