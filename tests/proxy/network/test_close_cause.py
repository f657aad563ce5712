"""framegate.proxy.network.close_cause: what goes wrong has one cause."""

import errno

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError, ConnectError, TlsError, TransportError, WrongProtocolError
from framegate.proxy.network.close_cause import cause_of, refusal
from framegate.proxy.network.framings import FRAMINGS
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import Receive, ReceiveLimit
from framegate.proxy.network.stats import SideStats
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock


@each_of(
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


@each_of(
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


@each_of(
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
