"""What is noted of the Kafka requests that have a span: from the arrival of a request's first bytes until its answer has been forwarded.

The pairing knows which answer belongs to a request by its place among the open ones. A chosen request has the number of those before it
(``RequestSpan.ahead``), which becomes smaller with each run of answers; nothing is noted in the pairing. Nothing waits for a span: it has what can be
read of the bytes that are there, also of a request that is cut through.
"""

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.kafka.error_codes import ERROR_HEAD, error_code, error_place
from framegate.proxy.kafka.produce_acks import produce_acks
from framegate.proxy.kafka.trace_parents import Produced, produced
from framegate.proxy.network.run import Run
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.request_sampler import RequestSpan

LOOKED_AT: Final = 65536  # bytes of a Produce request that are searched for trace contexts
_HEAD: Final = 8  # of a request: key, version, correlation id
_SAMPLED: Final = 1
MIXED_MOST: Final = 128  # the first frames of a run in which some requests expect no answer; it is looked at each of them, so later ones have no span
PAIR_MOST: Final = 32  # Spans of one connection that wait for their answers
_PREFIX: Final = 512  # bytes of a Produce request in which its acks are looked for; where they are further inside, it counts as one with an answer


def choose(pair: Pair, pairing: Pairing, run: Run, frames: i64, before: i64) -> None:
    """Choose requests of a run that was paired, after ``Sampler.left`` became negative. ``run``: whole frames, or the first piece of one."""
    sampler = pair.owner.sampler
    index = sampler.left + frames
    starts = run.starts()
    mixed = pairing.open - before != frames  # some expect no answer
    looked: i64 = 0
    ahead = before
    while index < frames:
        spans = pair.spans
        if (mixed and index >= MIXED_MOST) or (spans is not None and len(spans) >= PAIR_MOST):
            sampler.skipped += 1
        elif not pairing.lost and sampler.admit():
            while looked < index:
                ahead += 1 if not mixed or _expects(run, starts, looked) else 0
                looked += 1
            span = _begin(pair, pairing, run, starts, ahead, not mixed or _expects(run, starts, index), index)
            if span is None:
                sampler.open -= 1
            elif pair.spans is None:
                pair.spans = [span]
            else:
                pair.spans.append(span)
        index += sampler.gap() + 1
    sampler.left = index - frames


def _begin(pair: Pair, pairing: Pairing, run: Run, starts: "vec[i64]", ahead: i64, expects: bool, index: i64) -> RequestSpan | None:
    """Note one request; None: it has no span, because it is no request, or its sender's trace is not recorded."""
    body, size = _frame(run, starts, index, _HEAD)
    if i64(len(body)) < _HEAD:
        return None
    if expects and (ahead >= pairing.open or pairing.is_raw(ahead)):
        return None
    api = i64(read_i32_be(body, 0))
    carried: Produced | None = None
    if api >> 16 == 0:
        body, _ = _frame(run, starts, index, LOOKED_AT)
        carried = produced(body)
        if carried.parents and not _keep_recorded(carried.parents):
            return None
    span = RequestSpan(api, i64(read_i32_be(body, 4)), size, _arrival(pair, run, index), ahead, carried)
    span.answered = not expects
    return span


def _frame(run: Run, starts: "vec[i64]", index: i64, most: i64) -> tuple[bytes, i64]:
    """At most so many bytes of a frame's body, and its whole size."""
    header = run.framing.most_header
    if index == 0:
        header, size = run.first_sizes()
        return run.prefix(header + min(size, most))[header:], size
    start = starts[index] - run.head_size
    size = run.framing.body_size(run.data, start)
    return run.data[start + header : start + header + min(size, most)], size


def _expects(run: Run, starts: "vec[i64]", index: i64) -> bool:
    """Whether a request expects an answer, as the pairing decides it."""
    body, _ = _frame(run, starts, index, _PREFIX)
    if i64(len(body)) < _HEAD or read_i16_be(body, 0) != 0:
        return True
    return produce_acks(body, 0, i64(len(body)), i64(read_i16_be(body, 2))) != 0


def _keep_recorded(parents: list[str]) -> bool:
    """Remove the contexts of traces that are not recorded; whether others are left."""
    parents[:] = [parent for parent in parents if int(parent[-2:], 16) & _SAMPLED]
    return bool(parents)


def _arrival(pair: Pair, run: Run, index: i64) -> i64:
    client = pair.client.channel
    if index == 0 and client is not None and (run.head is not None or run.part != 0):
        return client.read_half.began_ns(client.frames_received - run.frames)
    return pair.owner.selector.arrived_ns


def answered(pair: Pair, pairing: Pairing, run: Run, before: i64) -> None:
    """Note the answers in a run that was paired, whole frames or the first piece of one. ``before``: how many requests were open before it."""
    taken = min(pairing.lost_at, before) if pairing.lost else before - pairing.open
    for span in pair.spans or []:
        if span.answered:
            continue
        if span.ahead >= taken:
            if pairing.lost:
                span.answered = True
                span.failure = "pairing_lost"
            span.ahead -= taken
        else:
            span.answered = True
            head, span.answer_size = _frame(run, run.starts(), span.ahead, ERROR_HEAD)
            place = error_place(span.api)
            if place != 0 and not span.failure:
                span.code = error_code(place, head, 0, i64(len(head)))


def forwarded(pair: Pair) -> None:
    """Report the requests whose answers have just been forwarded, and those that expect none."""
    now_ns = pair.owner.selector.read_clock()
    spans = pair.spans or []
    left = [span for span in spans if not span.answered]
    if len(left) != len(spans):
        pair.spans = left or None
        for span in spans:
            if span.answered:
                _report(pair, span, now_ns)


def ended(pair: Pair) -> None:
    """Report the requests that a closed pair leaves."""
    spans, pair.spans = pair.spans or [], None
    for span in spans:
        if not span.answered:
            span.failure = span.failure or "unanswered"
        _report(pair, span, pair.closed_ns)


def _report(pair: Pair, span: RequestSpan, now_ns: i64) -> None:
    span.ended_ns = now_ns
    pair.owner.sampler.open -= 1
    pair.owner.watcher.request_ended(pair, span)


def refused(pair: Pair, pairing: Pairing) -> None:
    """The last open request was refused by a rule."""
    for span in pair.spans or []:
        if not span.answered and span.ahead == pairing.open - 1:
            span.failure = "refused"


def take_out(pair: Pair, place: i64) -> None:
    """A request was removed from the open ones (``Pairing.take_out``)."""
    for span in pair.spans or []:
        if not span.answered and span.ahead == place:
            span.answered = True
            span.failure = "handler"
        elif span.ahead > place:
            span.ahead -= 1


def put_in(pair: Pair, place: i64) -> None:
    """A request was put between the open ones (``Pairing.put_in``)."""
    for span in pair.spans or []:
        if span.ahead >= place:
            span.ahead += 1
