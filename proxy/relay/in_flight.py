"""What is in flight at each endpoint: open requests and the oldest of them, connections without an answer, and the frames that have passed.

None of this is counted for each frame. Once a second all pairs are looked at, a slice of them after each poll, so that a hundred thousand connections
delay no frame. What a connection has passed is added up then, and when it ends.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.cells import ENDPOINT_BLOCK, LISTENER_BLOCK
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.counters import Counters, EndpointCounters
from framegate.proxy.relay.pair import Pair, Passed

SLICE: Final = 1_000  # pairs at a time: less than 0.1 ms
EACH_NS: Final = 1_000_000_000
MARK_NS: Final = 10_000_000_000
PATIENCE_NS: Final = 250_000_000  # a client that ends a connection after it has waited for longer gives up
GIVEN_NS: Final = 29_000_000_000  # to a Kafka request that may wait: less than the 30 s after which clients give up
LONG_GIVEN_NS: Final = 60_000_000_000  # the same where the client has not given up
GOES_ON_NS: Final = 5_000_000_000  # a client that sends more after it has waited for longer does not wait for an answer
STUCK_NS: Final = 10_000_000_000  # a Kafka request waits for long
HELD_NS: Final = 20_000_000_000  # an endpoint reads nothing for long
LEAST_SENT: Final = 4  # frames without an answer, from which on a client does not wait for one
FRAMES_RECEIVED: Final = ENDPOINT_BLOCK.at("framegate.upstream.frame.count", "receive")
FRAMES_SENT: Final = ENDPOINT_BLOCK.at("framegate.upstream.frame.count", "transmit")
BYTES_RECEIVED: Final = ENDPOINT_BLOCK.at("framegate.upstream.io", "receive")
BYTES_SENT: Final = ENDPOINT_BLOCK.at("framegate.upstream.io", "transmit")
OPEN: Final = ENDPOINT_BLOCK.at("framegate.upstream.request.open")
AGE: Final = ENDPOINT_BLOCK.at("framegate.upstream.request.age")
WAITING: Final = ENDPOINT_BLOCK.at("framegate.upstream.answer.waiting")
WAIT: Final = ENDPOINT_BLOCK.at("framegate.upstream.answer.age")
WAITED: Final = ENDPOINT_BLOCK.at("framegate.upstream.answer.time")
ASKED: Final = ENDPOINT_BLOCK.at("framegate.upstream.answer.asked")
HELD: Final = ENDPOINT_BLOCK.at("framegate.upstream.send.stalled")
KAFKA_WAITING: Final = LISTENER_BLOCK.at("framegate.kafka.request.waiting")
RECENT: Final = ENDPOINT_BLOCK.at("framegate.upstream.answer.recent")


def add_up(pair: Pair, counters: EndpointCounters, channel: Channel, now_ns: i64) -> None:
    """Add what a pair's connection to an endpoint has passed since the last time, and once the time until its first answer; note since when it waits.
    A connection waits while it was sent more frames than it has sent: since the first of these, or the look that saw it, or since the last byte that
    came from the endpoint. What its client sends meanwhile changes nothing, but one that sends after ``GOES_ON_NS`` does not wait, nor one that does
    not take what it was answered.
    """
    passed, out, cells = pair.passed, channel.write_half, counters.counts.cells
    if pair.pairing is None or pair.pairing.lost:
        _add_up_framed(passed, channel, cells, now_ns)
    if passed.waits_ns != 0 and channel.bytes_received != passed.bytes_received:
        passed.waits_ns = 0
        passed.goes_on = False
    if _client_takes_nothing(pair) or (channel.frames_received >= out.frames_sent and (channel.frames_received != 0 or out.first_ns == 0)):
        passed.waits_ns = 0
    elif passed.waits_ns == 0:
        passed.waits_ns = out.first_ns if channel.bytes_received == 0 and passed.bytes_sent == 0 else now_ns
    elif out.frames_sent != passed.frames_sent and now_ns - passed.waits_ns > GOES_ON_NS:
        passed.goes_on = True
    cells[FRAMES_RECEIVED] += channel.frames_received - passed.frames_received
    cells[BYTES_RECEIVED] += channel.bytes_received - passed.bytes_received
    cells[FRAMES_SENT] += out.frames_sent - passed.frames_sent
    cells[BYTES_SENT] += out.bytes_sent - passed.bytes_sent
    passed.frames_received, passed.bytes_received = channel.frames_received, channel.bytes_received
    passed.frames_sent, passed.bytes_sent = out.frames_sent, out.bytes_sent
    client = pair.client.channel
    if passed.answered or client is None or client.write_half.first_ns == 0:
        return
    passed.answered = True
    came_ns, asked_ns = client.write_half.first_ns, out.first_ns
    if 0 < asked_ns <= came_ns:  # else the endpoint spoke first
        counters.first_bytes.observe(came_ns - asked_ns)


def _add_up_framed(passed: Passed, channel: Channel, cells: "vec[i64]", now_ns: i64) -> None:
    """The same for what the endpoint was asked, and how long its answers took, without pairing."""
    came, asked = channel.bytes_received != passed.bytes_received, channel.write_half.frames_sent
    if came and passed.waits_ns != 0:
        cells[WAITED] += now_ns - passed.waits_ns
    if came:  # those that were sent since the last look may get an answer yet
        asked = max(passed.frames_sent, min(asked, channel.frames_received))
    if asked > passed.asked and (came or cells[FRAMES_RECEIVED] == 0):
        cells[ASKED] += asked - passed.asked
        passed.asked = asked


def has_waited(pair: Pair, channel: Channel) -> bool:
    """Whether the client of a pair, whose connection to an endpoint has closed, had waited for an answer, and for longer than clients do that go on.
    It waits until it ends its stream, however long the endpoint then takes to end its own; if that has not answered in the time for a half-closed
    pair either, it waited until then.
    """
    passed, pairing, until_ns = pair.passed, pair.pairing, channel.closed_ns
    if passed.ended_ns != 0 and until_ns - passed.ended_ns < pair.route.half_close_ns:
        until_ns = passed.ended_ns
    if pairing is not None and not pairing.lost:
        since_ns = i64(0) if pairing.open == 0 else pairing.waits_since_ns(GIVEN_NS)
    else:
        client = pair.client.channel
        last_ns = channel.last_active_ns if client is None else max(channel.last_active_ns, client.last_active_ns)
        since_ns = i64(0) if passed.waits_ns == 0 or _goes_on(pair, channel) else last_ns
    return since_ns != 0 and until_ns - since_ns > PATIENCE_NS


def oldest_ns(pair: Pair) -> i64:
    """When the oldest open request of a pair came, on the selector's clock; 0: none is open. Without pairing: since when the pair waits, as of the
    last look, if nothing came since. Clients that go on without an answer, of an endpoint that seldom answers, do not wait.
    """
    pairing, endpoint, channel = pair.pairing, pair.used, pair.upstream.channel
    if pairing is not None and not pairing.lost:
        return pairing.oldest_ns
    if endpoint is None or channel is None or channel.bytes_received != pair.passed.bytes_received:
        return 0
    cells = endpoint.counters.counts.cells
    seldom = cells[FRAMES_RECEIVED] * 2 < cells[ASKED]
    return 0 if pair.passed.goes_on or (seldom and _goes_on(pair, channel)) else pair.passed.waits_ns


def _goes_on(pair: Pair, channel: Channel) -> bool:
    """Whether a client goes on without an answer: it was sent hardly any on this connection, or has sent more when it had waited for long."""
    sent = channel.write_half.frames_sent
    return pair.passed.goes_on or (sent >= LEAST_SENT and channel.frames_received * 2 < sent)


class InFlight:
    """Looks at all pairs once a second."""

    def __init__(self, pairs: dict[int, Pair], counters: Counters, selector: Selector) -> None:
        self._selector: Final = selector
        self._counters: Final = counters
        self._pairs: Final = pairs
        self._round: list[Pair] = []  # those that are still to be looked at
        self._due_ns: i64 = 0
        self._began_ns: i64 = 0

    def look(self, now_ns: i64) -> bool:
        """Look at the next pairs, if it is time. True: there are more."""
        if not self._began_ns:
            if now_ns < self._due_ns:
                return False
            self._began_ns = now_ns
            self._due_ns = now_ns + EACH_NS
            self._round = list(self._pairs.values())
        self._selector.settle()
        left = self._round
        count: i64 = min(i64(len(left)), SLICE)
        while count > 0:
            self._see(left.pop())
            count -= 1
        if left:
            return True
        self._put()
        self._began_ns = 0
        return False

    def _see(self, pair: Pair) -> None:
        endpoint, channel = pair.used, pair.upstream.channel
        if endpoint is None or channel is None:
            return
        counters = endpoint.counters
        add_up(pair, counters, channel, self._began_ns)
        pairing = pair.pairing
        if pairing is None or pairing.lost:
            if pair.passed.waits_ns != 0 and not _goes_on(pair, channel):
                counters.waiting += 1
                counters.asked_ns = _earlier(counters.asked_ns, pair.passed.waits_ns)
        elif pairing.open > 0:
            counters.open += pairing.open
            since_ns = i64(0) if _client_takes_nothing(pair) else pairing.waits_since_ns(LONG_GIVEN_NS)
            counters.oldest_ns = _earlier(counters.oldest_ns, since_ns)
            if since_ns != 0 and self._began_ns - since_ns > STUCK_NS:
                pair.route.counters.waiting[pairing.oldest_api] += 1
        if _is_held(pair, channel, self._began_ns):
            counters.held += 1

    def _put(self) -> None:
        for listener in self._counters.listeners.values():
            for row in range(i64(len(listener.waiting))):
                listener.counts.cells[KAFKA_WAITING + row] = listener.waiting[row]
                listener.waiting[row] = 0
        for counters in self._counters.endpoints.values():
            cells = counters.counts.cells
            cells[OPEN] = counters.open
            cells[AGE] = _age(counters.oldest_ns, self._began_ns)
            cells[WAITING] = counters.waiting
            cells[WAIT] = _age(counters.asked_ns, self._began_ns)
            cells[HELD] = counters.held
            counters.open = counters.oldest_ns = counters.waiting = counters.asked_ns = counters.held = 0
            _put_answers(counters, self._began_ns)


def _client_takes_nothing(pair: Pair) -> bool:
    """Whether answers wait for a client. The endpoint is not read then, and may itself stop reading: neither is its fault."""
    client = pair.client.channel
    return client is not None and client.write_half.is_sending


def _is_held(pair: Pair, channel: Channel, now_ns: i64) -> bool:
    """Whether an upstream has taken no byte of what waits for it for long, although it is read."""
    passed, out = pair.passed, channel.write_half
    if not out.is_sending or out.wire_sent != passed.wire_sent or _client_takes_nothing(pair):
        passed.held_ns = 0
    elif passed.held_ns == 0:
        passed.held_ns = now_ns
    passed.wire_sent = out.wire_sent
    return passed.held_ns != 0 and now_ns - passed.held_ns > HELD_NS


def _put_answers(counters: EndpointCounters, now_ns: i64) -> None:
    """Publish how many frames an endpoint has sent since a mark that is 20 to 30 s old."""
    cells = counters.counts.cells
    received = cells[FRAMES_RECEIVED]
    if now_ns - counters.marked_ns >= MARK_NS:
        counters.marked_ns = now_ns
        counters.mark, counters.mark_before, counters.mark_last = received, counters.mark, counters.mark_before
    cells[RECENT] = received - counters.mark_last


def _earlier(one_ns: i64, other_ns: i64) -> i64:
    """The earlier of two times; 0 is none."""
    if one_ns == 0 or other_ns == 0:
        return max(one_ns, other_ns)
    return min(one_ns, other_ns)


def _age(since_ns: i64, now_ns: i64) -> i64:
    return 0 if since_ns == 0 else max(now_ns - since_ns, 0)
