"""proxy.network.verdict: what goes wrong has one cause."""

import errno

import pytest

from proxy.cause import Cause
from proxy.errors import AuthenticationError, ConnectError, TlsError, TransportError, WrongProtocolError
from proxy.network.framings import FRAMINGS
from proxy.network.memory_pool import MemoryPool
from proxy.network.options import ChannelOptions
from proxy.network.receive import Receive, ReceiveLimit
from proxy.network.stats import SideStats
from proxy.network.verdict import cause_of, refusal
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TransportError("x", errno=errno.ECONNRESET), Cause.PEER_RESET),
        (TransportError("x", errno=errno.EPIPE), Cause.PEER_RESET),
        (TlsError("x", reason="y"), Cause.TLS_FAILED),
        (AuthenticationError("x"), Cause.AUTH_FAILED),
        (WrongProtocolError("x", side="downstream"), Cause.WRONG_PROTOCOL),
        (ConnectError("x", errno=errno.ECONNREFUSED), Cause.UPSTREAM_REFUSED),
        (ConnectError("x", errno=errno.EHOSTUNREACH), Cause.UPSTREAM_REFUSED),
        (ConnectError("x", errno=errno.ETIMEDOUT), Cause.UPSTREAM_TIMEOUT),
    ],
)
def test_what_fails_has_a_cause(error: TransportError | AuthenticationError | WrongProtocolError, cause: Cause) -> None:
    assert cause_of(error) is cause


@pytest.mark.parametrize(
    ("data", "cause", "text"),
    [
        (b"\0\0\0\x0b", Cause.FRAME_TOO_LARGE, "frame of 11 bytes exceeds the limit of 10"),
        (b"\x80\0\0\0", Cause.NEGATIVE_SIZE, "frame size -2147483648 is negative"),
        (b"GET ", Cause.WRONG_PROTOCOL, "the first bytes are HTTP, not a frame"),
    ],
)
def test_a_refused_frame_has_a_cause_and_an_error(data: bytes, cause: Cause, text: str) -> None:
    options = ChannelOptions(side="upstream", limit=ReceiveLimit(10), stats=SideStats())
    receive = Receive(MemoryPool(100, FakeClock().now_ns).common, options.limit, options.stats)
    receive.feed(data)
    found, error = refusal(receive, options)
    assert (found, str(error), error.side) == (cause, text, "upstream")


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (32_766, "frame of 32768 bytes exceeds the limit of 32766"),
        (32_767, "frame of 32768 bytes exceeds the limit of 32767"),
        (40_000, "frame of 32768 bytes exceeds the limit of 32767, the most that int16 can say"),
    ],
)
def test_the_framing_of_the_other_side_may_be_the_limit(limit: int, text: str) -> None:
    options = ChannelOptions(side="downstream", limit=ReceiveLimit(limit), stats=SideStats(), onward=FRAMINGS["int16"])
    receive = Receive(MemoryPool(100, FakeClock().now_ns).common, options.limit, options.stats, framing=options.framing, onward=options.onward)
    receive.feed(b"\0\0\x80\0")
    assert str(refusal(receive, options)[1]) == text
