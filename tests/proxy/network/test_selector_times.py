"""framegate.proxy.network.selector: timers, the descriptors of others, and a poll that is bounded in time."""

import contextlib
import select
import socket
from collections.abc import Callable

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.epoll import FdHandler
from framegate.proxy.network.run import Run
from framegate.proxy.network.selector import BUDGET_NS, CLOCK_EACH, MAX_EVENTS
from framegate.proxy.network.state import ChannelState
from framegate.proxy.network.timer import CallbackTimer
from tests.fakes.cases import each_of
from tests.fakes.clock import SECOND
from tests.fakes.network import NetBench, frame, net_bench
from tests.fakes.tls import TlsWorld, hold_frames, tls_pair


class Drain(FdHandler):
    """Reads a descriptor and keeps what came."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.seen = b""

    def on_event(self, events: int) -> None:
        self.seen += self.sock.recv(100)


# Descriptors of others, and timers.


def test_other_descriptors_may_be_watched(net: NetBench) -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        handler = Drain(ours)
        net.selector.watch(ours.fileno(), handler)
        peer.send(b"one")
        net.poll()
        assert handler.seen == b"one"
        net.selector.watch(ours.fileno(), handler, select.EPOLLPRI)
        peer.send(b"two")
        net.poll()
        assert handler.seen == b"one"
        net.selector.watch(ours.fileno(), handler, select.EPOLLIN)
        net.poll()
        assert handler.seen == b"onetwo"
        net.selector.unwatch(ours.fileno())
        net.selector.unwatch(ours.fileno())
        peer.send(b"three")
        net.poll()
        assert handler.seen == b"onetwo"


def test_timers_fire_in_a_poll_and_shorten_the_wait(net: NetBench) -> None:
    fired: list[str] = []
    timer, gone = CallbackTimer(lambda: fired.append("timer")), CallbackTimer(lambda: fired.append("gone"))
    net.selector.call_at(net.clock.now + 3 * SECOND, timer)
    net.selector.call_at(net.clock.now + SECOND, gone)
    net.selector.cancel(gone)
    net.poll()
    assert fired == []
    net.clock.advance_ms(3000)
    net.selector.poll(1_000_000)
    assert fired == ["timer"]


def test_busy_and_idle_time_are_told_apart(net: NetBench) -> None:
    net.listener.on["ready"] = lambda channel: net.clock.advance_ms(5)
    net.ready_pair()
    net.poll()
    assert (net.selector.busy_ns, net.selector.idle_ns, net.selector.polls) == (5_000_000, 0, 2)


def test_a_timer_that_raises_is_a_fault_and_the_others_fire(net: NetBench) -> None:
    fired: list[str] = []

    def fail() -> None:
        raise RuntimeError("a bug")

    for number, action in enumerate((fail, lambda: fired.append("timer"))):
        net.selector.call_at(net.clock.now + number, CallbackTimer(action))
    net.clock.advance_ms(1)
    net.poll()
    assert fired == ["timer"]
    assert net.selector.faults.take()[0][:3] == ("timer", 1, "RuntimeError: a bug")
    net.faults = 1


def test_a_descriptor_whose_handler_raises_is_a_fault_and_the_channels_go_on(net: NetBench) -> None:
    class Failing(FdHandler):
        def on_event(self, events: int) -> None:
            raise RuntimeError("a bug")

    ours, peer = socket.socketpair()
    with ours, peer:
        net.selector.watch(ours.fileno(), Failing())
        channel, client = net.ready_pair()
        peer.send(b"one")
        client.send(frame(1))
        net.poll()
        net.selector.unwatch(ours.fileno())
        assert channel.frames_received == 1
    net.faults = 1
    assert net.selector.faults.take()[0].place == "descriptor"


# The time of a poll.


class Slow:
    """What every callback costs, on the clock of the test."""

    def __init__(self, net: NetBench, word: str, ms: float) -> None:
        self.net = net
        self.ms = ms
        self.who: list[Channel] = []
        net.listener.on[word] = self

    def __call__(self, channel: Channel) -> None:
        self.who.append(channel)
        self.net.clock.advance_ms(self.ms)

    def cost_of_a_poll_ms(self) -> float:
        before = self.net.clock.now
        self.net.poll()
        return (self.net.clock.now - before) / 1_000_000


BOUND_MS = (BUDGET_NS / 1_000_000) + CLOCK_EACH  # a step of these tests costs 1 ms


def test_a_poll_handles_events_for_a_bounded_time_and_each_in_its_turn(net: NetBench) -> None:
    """More ready channels than one wait tells of; nobody is read twice before all were read once."""
    pairs = [net.ready_pair() for _ in range(MAX_EVENTS + 44)]
    slow = Slow(net, "received", 1)
    for slot in range(1, 3):
        for _, peer in pairs:
            peer.send(frame(1))
        polls = 0
        while len(slow.who) < slot * len(pairs):
            assert slow.cost_of_a_poll_ms() <= BOUND_MS
            polls += 1
        assert set(slow.who) == {channel for channel, _ in pairs}
        assert len(slow.who) == slot * len(pairs)
    assert polls > len(pairs) / BOUND_MS


@each_of("busy", [True, False], fresh={"net": net_bench})
def test_a_watched_descriptor_is_handled_before_the_channels_of_a_busy_selector(net: NetBench, busy: bool) -> None:
    """A look at the watched descriptors alone costs a call, which a selector with little to do saves."""
    ours, peer = socket.socketpair()
    with ours, peer:
        handler = Drain(ours)
        net.selector.watch(ours.fileno(), handler)
        pairs = [net.ready_pair() for _ in range(60 if busy else 1)]
        slow = Slow(net, "received", 1)
        for _, client in pairs:
            client.send(frame(1))
        if busy:
            net.poll()
            assert len(slow.who) < 20
        peer.send(b"a command")
        seen: list[bytes] = []
        net.listener.on["received"] = lambda channel: seen.append(handler.seen)
        net.poll()
        assert set(seen) == {b"a command" if busy else b""}
        assert handler.seen == b"a command"
        net.selector.unwatch(ours.fileno())


def test_an_event_left_over_is_not_given_to_a_new_channel_with_the_same_descriptor(net: NetBench) -> None:
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for filler in [stack.enter_context(socket.socket()) for _ in range(4)]:
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        pairs = [net.ready_pair() for _ in range(20)]
        slow = Slow(net, "received", 1)
        for _, peer in pairs:
            peer.send(frame(1))
        net.poll()
        last = [channel for channel, _ in pairs[-4:]]
        fds = {channel.fd for channel in last}

        def close_the_last(channel: Channel, run: Run) -> None:
            for other in last:
                other.close(Cause.ADMIN)

        net.listener.on_run = close_the_last
        net.poll()
        assert not any(channel in slow.who for channel in last)
        fresh = [net.connect(socket.AF_INET, silent.getsockname(), 1, net.options(side="upstream")) for _ in range(4)]
        assert {channel.fd for channel in fresh} == fds
        net.poll(3)
        assert [channel.state for channel in fresh] == [ChannelState.CONNECTING] * 4


def test_visits_are_made_for_a_bounded_time_and_none_is_forgotten(net: NetBench, tls_world: TlsWorld) -> None:
    pairs = [tls_pair(net, tls_world) for _ in range(12)]
    for server, client in pairs:
        hold_frames(net, server, client)
    slow = Slow(net, "received", 1)
    for server, _ in pairs:
        server.unmute(mute.ADMIN)
    while len(slow.who) < len(pairs):
        before = len(slow.who)
        assert slow.cost_of_a_poll_ms() <= BOUND_MS
        assert len(slow.who) > before
    assert set(slow.who) == {server for server, _ in pairs}


def test_timers_fire_for_a_bounded_time_and_the_rest_with_the_next_poll(net: NetBench) -> None:
    fired: list[int] = []

    def act(number: int) -> Callable[[], None]:
        def run() -> None:
            fired.append(number)
            net.clock.advance_ms(1)

        return run

    for number in range(100):
        net.selector.call_at(net.clock.now + number, CallbackTimer(act(number)))
    net.clock.advance_ms(1)
    polls = 0
    while len(fired) < 100:
        before = len(fired)
        net.selector.poll(1_000_000)
        assert 0 < len(fired) - before <= 16
        polls += 1
    assert fired == list(range(100))


def test_ends_are_told_for_a_bounded_time_and_all_of_them(net: NetBench) -> None:
    channels = [net.ready_pair()[0] for _ in range(40)]
    slow = Slow(net, "closed", 1)
    for channel in channels:
        channel.close(Cause.ADMIN)
    while len(slow.who) < len(channels):
        assert slow.cost_of_a_poll_ms() <= BOUND_MS
    assert slow.who == channels
    assert net.selector.channel_count == 0
