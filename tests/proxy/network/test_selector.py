"""framegate.proxy.network.selector: many connections, one wait."""

import errno
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.clock import Clock
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.plaintext import PlaintextTransport
from framegate.proxy.network.run import Run
from framegate.proxy.network.run_delay import RunDelay
from framegate.proxy.network.selector import MAX_REGISTERED, Selector
from framegate.proxy.network.state import ChannelState
from tests.fakes.network import NetBench, frame, net_bench, run_of
from tests.fakes.tls import TlsWorld
from tests.proxy.network.conftest import pass_ms

# Opening.


def test_a_connection_is_opened_without_blocking(net: NetBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = net.connect(socket.AF_INET, server.getsockname(), 7, net.options(side="upstream"), peer="server")
        assert net.listener.words() == []
        net.poll_until(lambda: channel.is_open)
        peer, _ = server.accept()
        with peer:
            assert channel.send(run_of(frame(2)))
            assert peer.recv(100) == frame(2)
    assert (channel.id, channel.peer) == (7, "server")
    assert channel.opened_ns <= channel.connected_ns <= channel.ready_ns


def test_a_connection_that_takes_its_time_is_ready_when_the_socket_says_so(net: NetBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.socket()
        ours.setblocking(False)
        assert ours.connect_ex(server.getsockname()) == errno.EINPROGRESS
        channel = net.adopt(ours, PlaintextTransport(ours), 1, net.options(side="upstream"), connecting=True)
        assert channel.state is ChannelState.CONNECTING
        net.clock.now += 5
        net.poll_until(lambda: channel.is_open)
    assert channel.opened_ns + 5 == channel.connected_ns == channel.ready_ns


def test_a_unix_socket_connects_at_once_and_is_told_later_and_one_whose_queue_is_full_refuses(net: NetBench, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        first, second = [net.connect(socket.AF_UNIX, path, number, net.options(side="upstream")) for number in (1, 2)]
        assert net.listener.words() == []
        net.poll_until(lambda: first.is_open and second.close_cause)
        assert second.close_cause is Cause.UPSTREAM_REFUSED


def test_a_client_that_does_not_finish_its_handshake_times_out(net: NetBench, tls_world: TlsWorld) -> None:
    channel, _ = net.pair(net.options(tls=tls_world.server_settings()))
    net.poll(2)
    pass_ms(net, 9_999)
    assert channel.state is ChannelState.HANDSHAKE
    pass_ms(net, 1)
    assert channel.close_cause is Cause.HANDSHAKE_TIMEOUT


def test_the_budget_for_new_sockets_is_renewed_by_each_poll(net: NetBench) -> None:
    """An accepted socket is ready with the next poll, never within ``register``."""
    channels = [net.pair()[0] for _ in range(3)]
    assert net.selector.register_budget == MAX_REGISTERED - 3
    assert ({channel.state for channel in channels}, net.listener.words()) == ({ChannelState.HANDSHAKE}, [])
    net.poll()
    assert net.selector.register_budget == MAX_REGISTERED
    assert [(channel.state, channel.principal) for channel in channels] == [(ChannelState.READY, "ANONYMOUS")] * 3
    assert net.listener.words() == ["ready"] * 3


# Events.


def test_a_negative_timeout_is_a_mistake(net: NetBench) -> None:
    with pytest.raises(ValueError, match="timeout"):
        net.selector.poll(-1)


def test_one_read_for_each_channel_in_each_poll(net: NetBench) -> None:
    busy, busy_peer = net.ready_pair()
    other, other_peer = net.ready_pair()
    busy_peer.send(frame(100) * 1000)
    other_peer.send(frame(1))
    net.poll()
    assert net.stats.reads == 2
    assert other.frames_received == 1
    assert 0 < busy.frames_received < 1000


def test_many_connections_keep_their_order(net: NetBench) -> None:
    pairs = [net.ready_pair(tcp=True) for _ in range(5)]
    for number in range(100):
        for index, (_, peer) in enumerate(pairs):
            peer.send(frame(number % 7, bytes([index])))
        net.poll()
    net.poll_until(lambda: all(channel.frames_received == 100 for channel, _ in pairs))
    for index, (channel, _) in enumerate(pairs):
        assert net.listener.data[channel] == b"".join(frame(number % 7, bytes([index])) for number in range(100))


def test_a_descriptor_is_not_reused_before_the_poll_has_ended(net: NetBench) -> None:
    first, peer = net.ready_pair()
    second, second_peer = net.ready_pair()
    fds: list[int] = []

    def replace(channel: Channel, run: Run) -> None:
        if fds:
            return
        other = second if channel is first else first
        fds.append(other.fd)
        other.close(Cause.ADMIN)
        fds.append(net.pair()[0].fd)

    net.listener.on_run = replace
    peer.send(frame(1))
    second_peer.send(frame(1))
    net.poll()
    assert len(fds) == 2
    assert fds[0] != fds[1]
    assert net.listener.words().count("received") == 1
    net.poll()


def test_no_callback_is_made_within_another(net: NetBench) -> None:
    depth: list[str] = []

    def enter(word: str) -> Callable[[Channel], None]:
        def check(channel: Channel) -> None:
            assert depth == [], f"{word} within {depth}"
            depth.append(word)
            channel.mute(mute.PEER)
            channel.unmute(mute.PEER)
            if word == "received":
                channel.shut_write()
            elif word == "write_ended":
                channel.close(Cause.ADMIN)
            depth.pop()

        return check

    for word in ("ready", "received", "sent", "end_of_stream", "write_ended", "closed"):
        net.listener.on[word] = enter(word)
    channel, peer = net.ready_pair()
    peer.send(frame(1))
    net.poll(3)
    assert net.listener.words(channel) == ["ready", "received", "write_ended", "closed"]
    assert net.selector.faults.total == 0


def test_closed_may_close_others_and_all_are_told(net: NetBench) -> None:
    channels = [net.ready_pair()[0] for _ in range(4)]
    net.listener.on["closed"] = lambda channel: (
        channels[channels.index(channel) + 1].close(Cause.UPSTREAM_CLOSED) if channel is not channels[-1] else None
    )
    channels[0].close(Cause.ADMIN)
    net.poll()
    assert [channel.close_cause for channel in channels] == [Cause.ADMIN] + [Cause.UPSTREAM_CLOSED] * 3
    assert net.listener.words()[-4:] == ["closed"] * 4


# Interest.


def test_a_short_mute_costs_no_system_call(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    before = channel._interest
    for _ in range(3):
        channel.mute(mute.PEER)
        net.poll()
        channel.unmute(mute.PEER)
    assert channel._interest == before
    channel.mute(mute.PEER)
    peer.send(frame(1))
    net.poll()
    assert channel._interest == 0


# Ends.


def test_closing_the_selector_closes_every_channel() -> None:
    with net_bench() as net:
        for _ in range(3):
            net.ready_pair()
        channel, peer = net.ready_pair()
        peer.send(frame(100)[:50])
        net.poll()
        net.pair()
    assert net.listener.words().count("closed") == 5
    assert channel.close_cause is Cause.DRAINED


class ReadingsClock(Clock):
    """Returns the given times, one after the other, and then the last of them."""

    def __init__(self) -> None:
        self.readings = [0]

    def now_ns(self) -> int:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def test_events_have_come_when_the_wait_ended_or_before_while_the_thread_worked_or_could_not_run(tmp_path: Path) -> None:
    clock, file = ReadingsClock(), tmp_path / "schedstat"
    selector = Selector(clock, MemoryPool(1, lambda: 0), RunDelay(str(file)))
    us, ready = 1000, 0
    for worked, waited, delayed, expected in (
        (20, 5_000, 0, 0),  # the first: nothing is known of the time before
        (20, 5_000, 3_000, 3_000),
        (20, 5_000, 9_000, 5_000),
        (20, 999, 9_000, 0),
        (20, 5_000, 0, 5_000),  # the delay of the wait before, which was too short to ask
        (40_000, 10, 30_000, 20_000),
        (20, 1_000, 700, 700),
        (20, 49, 0, 10),
        (20, 50, 0, 0),
    ):
        ready += delayed
        file.write_text(f"0 {ready * us} 0", encoding="ascii")
        began = clock.readings[-1] + worked * us
        clock.readings = [began, began + waited * us]
        selector.poll(0)
        assert selector.now_ns - selector.arrived_ns == expected * us, (worked, waited, delayed)
    selector.close()
