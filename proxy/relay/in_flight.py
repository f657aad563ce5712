"""What is in flight at each endpoint: open requests and the oldest of them, connections without an answer, and the frames that have passed.

None of this is counted for each frame. Once a second all pairs are looked at, a slice of them after each poll, so that a hundred thousand connections
delay no frame. What a connection has passed is added up then, and when it ends.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cells import ENDPOINT_BLOCK
from framegate.proxy.network.channel import Channel
from framegate.proxy.relay.counters import Counters, EndpointCounters
from framegate.proxy.relay.pair import Pair

SLICE: Final = 1_000  # pairs at a time: less than 0.1 ms
EACH_NS: Final = 1_000_000_000
MARK_NS: Final = 10_000_000_000
PATIENCE_NS: Final = 250_000_000  # a client that ends a connection after it has waited for longer gives up
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
RECENT: Final = ENDPOINT_BLOCK.at("framegate.upstream.answer.recent")


def add_up(pair: Pair, counters: EndpointCounters, channel: Channel, now_ns: i64) -> None:
    """Add what a pair's connection to an endpoint has passed since the last time, and once the time until its first answer; note since when it waits.
    A connection waits while it was sent more frames than it has sent: since the first of these, or the look that saw it, or since the last byte that
    came from the endpoint. What its client sends meanwhile changes nothing.
    """
    passed, out, cells = pair.passed, channel.write_half, counters.counts.cells
    pairing = pair.pairing
    is_framed = pairing is None or pairing.lost
    if passed.waits_ns != 0 and channel.bytes_received != passed.bytes_received:
        if is_framed:
            cells[WAITED] += now_ns - passed.waits_ns
        passed.waits_ns = 0
    if channel.frames_received >= out.frames_sent and (channel.frames_received != 0 or out.first_ns == 0):
        passed.waits_ns = 0
    elif passed.waits_ns == 0:
        passed.waits_ns = out.first_ns if channel.bytes_received == 0 and passed.bytes_sent == 0 else now_ns
    if is_framed:
        counters.asked += out.frames_sent - passed.frames_sent
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


def has_waited(pair: Pair, channel: Channel) -> bool:
    """Whether the client of a pair, whose connection to an endpoint has closed, had waited for an answer, and for longer than clients do that go on.
    It waits until it ends its stream, however long the endpoint then takes to end its own; if that has not answered in the time for a half-closed
    pair either, it waited until then.
    """
    passed, pairing, until_ns = pair.passed, pair.pairing, channel.closed_ns
    if passed.ended_ns != 0 and until_ns - passed.ended_ns < pair.route.half_close_ns:
        until_ns = passed.ended_ns
    if pairing is None or pairing.lost:
        since_ns = min(passed.waits_ns, channel.last_active_ns)  # a wait that no look has seen begins with the last byte
    else:
        since_ns = i64(0) if pairing.open == 0 else pairing.waits_since_ns
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
    cells, sent = endpoint.counters.counts.cells, channel.write_half.frames_sent
    goes_on = sent >= LEAST_SENT and channel.frames_received * 2 < sent
    return 0 if goes_on and cells[FRAMES_RECEIVED] * 2 < cells[ASKED] else pair.passed.waits_ns


class InFlight:
    """Looks at all pairs once a second."""

    def __init__(self, pairs: dict[int, Pair], counters: Counters) -> None:
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
            if pair.passed.waits_ns != 0:
                counters.waiting += 1
                counters.asked_ns = _earlier(counters.asked_ns, pair.passed.waits_ns)
        elif pairing.open > 0:
            counters.open += pairing.open
            counters.oldest_ns = _earlier(counters.oldest_ns, pairing.waits_since_ns)

    def _put(self) -> None:
        for counters in self._counters.endpoints.values():
            cells = counters.counts.cells
            cells[OPEN] = counters.open
            cells[AGE] = _age(counters.oldest_ns, self._began_ns)
            cells[WAITING] = counters.waiting
            cells[WAIT] = _age(counters.asked_ns, self._began_ns)
            counters.open = counters.oldest_ns = counters.waiting = counters.asked_ns = 0
            _put_answers(counters, self._began_ns)


def _put_answers(counters: EndpointCounters, now_ns: i64) -> None:
    """Publish how many frames an endpoint was sent until its last answer, and how many it has sent since a mark that is 20 to 30 s old."""
    cells = counters.counts.cells
    received = cells[FRAMES_RECEIVED]
    if received == 0 or received != counters.received:
        cells[ASKED] = counters.asked
    counters.received = received
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
