"""What is replaced on the connections of a listener with brokers, so that no client learns the address of a broker itself.

Answers: the addresses of brokers become those that clients are told, and ApiVersions promises only what framegate understands; see
``framegate.proxy.kafka``. ``Pairing.found`` says which answers have any; others are not looked at. A large answer that passes in pieces has its
addresses in its first part, which comes in the first piece (``ChannelOptions.keeps_first``), or is looked through piece by piece, and its addresses
are erased. Answers to FindCoordinator have them up to their end: after a long request they are received whole, up to ``LISTS_WHOLE``. An answer that
cannot be understood, or belongs to no request, ends the connection: nothing of it leaves, except pieces that have left before.

Requests: an API or version that framegate does not understand would have an answer that it cannot rewrite. ApiVersions gets the answer that a
broker would give, prepared here (``PreparedAnswers``); any other ends the connection, as at a broker. So does SaslHandshake of version 0, because
what follows it cannot be told from requests.

The memory of what is replaced is that of the run in whose place it is sent, a little more or less; what the socket does not take is booked as it is.
"""

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from librt.vecs import vec
from mypy_extensions import i32, i64

from framegate.proxy.config.model import KafkaRule
from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.addresses import NONE, TAIL, carries_addresses
from framegate.proxy.kafka.api_versions import narrowed, probe_request, unsupported_version_answer
from framegate.proxy.kafka.endpoint_eraser import EndpointEraser
from framegate.proxy.kafka.schema import api as api_with
from framegate.proxy.kafka.schema import understands
from framegate.proxy.network.channel_sink import NO_LIMIT
from framegate.proxy.network.int32 import HEADER, INT32
from framegate.proxy.network.run import PART_FIRST, PART_LAST, Buffer, Run
from framegate.proxy.network.translation import refer
from framegate.proxy.relay.cluster import RouteBrokers
from framegate.proxy.relay.kafka_rules import AnswerChange, KafkaJudge, Rule
from framegate.proxy.relay.pairing import FOUND, IN_HEAD, Pairing
from framegate.proxy.relay.prepared_answers import MOST_PREPARED

JOIN_BELOW: Final = 65536  # bytes; a shorter result is copied into one piece
VIEW_FROM: Final = 4096  # a view costs more than copying fewer bytes than this
WHOLE_UP_TO: Final = 262144  # bytes of the largest answer in pieces that is copied into one; of a larger one the first part is
FIRST_PART: Final = 131072  # bytes in which the addresses at the beginning of a larger one must be
REQUEST_HEAD: Final = 8  # key, version, correlation id
METADATA: Final = 3
FIND_COORDINATOR: Final = 10  # its answer has an address for each key, up to the end
API_VERSIONS: Final = 18
LOST: Final = "an answer to no request"
LONG_LIST: Final = 1024  # bytes of a request of FindCoordinator; an answer to a shorter one has less than CUT_ABOVE (hosts have at most 255)
UNPAIRED: Final = "a request whose answer cannot be told from others"


_UNDERSTOOD: Final = Rule(KafkaRule(), narrow=True).table


def replaced(pairing: Pairing, run: Run, answer: bytes) -> bytes:
    """The frame that is sent in place of the request that was paired last. ``run``: that request, or its first piece. ``answer``: the body of the
    answer that its client gets in place of the upstream's.
    """
    pairing.replace_last(answer)
    body = probe_request(read_i32_be(run.prefix(HEADER + REQUEST_HEAD), HEADER + 4))
    return INT32.header_of(len(body)) + body


class Rewriting:
    """The replacements on one connection."""

    def __init__(self, brokers: RouteBrokers | None, pairing: Pairing, judge: KafkaJudge | None = None) -> None:
        self.fault: str = ""  # why the rest of the last run, or the last piece, may not be sent; empty: everything may
        self.good: i64 = 0  # how many frames of that run may
        self.refuses_part: bool = False  # the request that comes in pieces was refused, so its other pieces are dropped
        self.passes: bool = False  # after ``judge``, whether the request is passed on, perhaps changed (``passed``)
        # a request was seen whose answer may be long, and has addresses up to its end: it must not come in pieces. Not with rules, because all
        # answers up to that size are whole then.
        self.wants_whole: bool = False
        self._brokers: Final = brokers
        self._pairing: Final = pairing
        self._judge: Final = judge
        self._eraser: EndpointEraser | None = None

    @property
    def pipe_limit(self) -> i64:
        """How many of the next bytes of an answer in pieces need not be looked through."""
        return NO_LIMIT if self._eraser is None else self._eraser.ahead

    @property
    def waits(self) -> bool:
        """Whether so many prepared answers wait that the client must."""
        prepared = self._pairing.prepared
        return prepared is not None and prepared.count > MOST_PREPARED

    @property
    def may_ask(self) -> bool:
        """Whether few enough are left that it may go on."""
        prepared = self._pairing.prepared
        return prepared is None or 2 * prepared.count <= MOST_PREPARED

    @property
    def narrow(self) -> bool:
        """Whether an API or version that is not known is not passed."""
        if self._brokers is not None:
            return self._brokers.narrow
        return self._judge is not None and self._judge.narrow

    # Requests.

    def first_odd(self, run: Run, index: i64 = 0, pos: i64 = 0) -> i64:
        """The index of the first request that may not be passed on as it is; -1: all may. ``run``: whole frames. ``index``, ``pos``: of the first
        frame to look at, if it is not the run's first.
        """
        judge = self._judge
        if judge is not None and index == 0:
            judge.follow()
        if run.head is not None and index == 0:
            if not self._passes(run.prefix(HEADER + REQUEST_HEAD)):
                return 0
            index = 1
        if pos == 0:
            pos = run.first
        odd_at = self._odd_at(run.data, pos, run.end)
        if odd_at == run.end:
            return -1
        while pos < odd_at:
            pos += HEADER + i64(read_i32_be(run.data, pos))
            index += 1
        return index

    def _odd_at(self, data: bytes, pos: i64, end: i64) -> i64:
        """Where the first such request from ``pos`` on begins; ``end``: there is none."""
        judge = self._judge
        same: i64 = -1  # API and version of the last request, if others like it may be passed on
        while pos + HEADER + 4 <= end:
            head = read_i64_be(data, pos)  # size, API, version
            size = head >> 32
            if head & 0xFFFFFFFF != same or size < REQUEST_HEAD:
                key = head >> 16 & 0xFFFF
                if size < REQUEST_HEAD or not self._passes_api(key, head & 0xFFFF, size):
                    break
                if judge is None or not judge.by_client:
                    same = -1 if key == FIND_COORDINATOR else head & 0xFFFFFFFF  # of that one, the size of each counts
                elif not judge.knows_client(data, pos + HEADER, pos + HEADER + size):
                    break
            pos += HEADER + size
        return pos if judge is not None or self.narrow else end

    def passes_part(self, run: Run) -> bool:
        """As ``first_odd``, for the first piece of a request."""
        return self._passes(run.prefix(HEADER + REQUEST_HEAD))

    def _passes(self, head: bytes) -> bool:
        """Whether the request with this head, as far as it is there, may be passed on as it is."""
        judge = self._judge
        if i64(len(head)) < HEADER + REQUEST_HEAD or INT32.body_size(head, 0) < REQUEST_HEAD:
            return judge is None and not self.narrow
        if judge is not None and judge.by_client:
            return False
        return self._passes_api(i64(read_i16_be(head, HEADER)), i64(read_i16_be(head, HEADER + 2)), INT32.body_size(head, 0))

    def _passes_api(self, key: i64, version: i64, size: i64) -> bool:
        """Whether a request of an API, of so many bytes, may be passed on as it is, as far as the client does not matter; sets ``wants_whole``."""
        judge = self._judge
        if judge is not None:
            return _is_in(judge.table, key, version)
        if key == FIND_COORDINATOR and size > LONG_LIST:
            self.wants_whole = True
        return not self.narrow or _is_in(_UNDERSTOOD, key, version)

    def judge(self, run: Run) -> bytes:
        """The body of the answer to a request that is not passed on; sets ``fault`` if it ends the connection. ``run``: one frame, or its first
        piece, found by ``first_odd``.
        """
        self.fault = ""
        head = run.prefix(HEADER + REQUEST_HEAD)
        if i64(len(head)) < HEADER + REQUEST_HEAD or INT32.body_size(head, 0) < REQUEST_HEAD:
            self.fault = "a frame that is no request of Kafka"
            return b""
        key, version = i64(read_i16_be(head, HEADER)), i64(read_i16_be(head, HEADER + 2))
        judge = self._judge
        self.passes = not self.narrow or _is_in(_UNDERSTOOD, key, version)
        if judge is not None:
            judge.judge(run.prefix(HEADER + INT32.body_size(head, 0))[HEADER:], whole=run.part == 0)
            self.fault = judge.fault
            if judge.fault or judge.answer:
                self.passes = False
                return judge.answer
        if self.passes:
            return b""
        if key == API_VERSIONS and version >= 0:
            return unsupported_version_answer(read_i32_be(head, HEADER + 4))
        known = api_with(int(key))
        self.fault = f"version {version} of {'an unknown API' if known is None else known.name} (API {key}) is not passed"
        return b""

    def passed(self, run: Run, *, expects: bool) -> Run:
        """The run that is sent in place of a request that was judged, paired, and passes. ``expects``: it will have an answer."""
        judge = self._judge
        if judge is None:
            return run
        if judge.change is not None and expects:
            self._pairing.change_last(judge.change)
        if not judge.request:
            return run
        frame = INT32.header_of(len(judge.request)) + judge.request
        return Run(None, 0, frame, 0, i64(len(frame)), 1, 0)

    # Answers.

    def answers(self, run: Run, now_ns: i64) -> Run:
        """The run that is sent in place of a run of answers: up to the first frame that may not be (``fault``). The lease stays with ``run``."""
        self.fault = ""
        self.good = run.frames
        pairing = self._pairing
        if len(pairing.found) == 0 and not pairing.lost:
            return run
        pieces: list[Buffer] = [] if run.head is None else [*run.head]
        done: i64 = 0  # position in the data up to which the pieces go
        end = run.end
        index: i64 = 0
        while index < i64(len(pairing.found)):
            place, size, api = pairing.found[index], pairing.found[index + 1], pairing.found[index + 2]
            index += FOUND
            new = self._frame(run, place, size, api, now_ns)
            if self.fault:
                end = 0 if place == IN_HEAD else place - HEADER
                break
            if new is not None and place == IN_HEAD:
                pieces = new
                done = run.first
            elif new is not None:
                _add(pieces, run.data, done, place - HEADER)
                pieces += new
                done = place + size
        if done == 0 and not self.fault and not pairing.lost:
            return run
        return self._sent(run, pieces, done, end)

    def _sent(self, run: Run, pieces: list[Buffer], done: i64, end: i64) -> Run:
        """The run of pieces, and of the data behind ``done``, up to ``end`` or to the answer with which pairing was lost."""
        if self.fault or self._pairing.lost:
            starts = run.starts()
            if not self.fault:
                self.fault = LOST
                self.good = self._pairing.lost_at
                end = starts[self.good] - run.head_size
            else:
                self.good = 0
                while end > 0 and starts[self.good] - run.head_size < end:
                    self.good += 1
            if self.good == 0:
                return Run(None, 0, b"", 0, 0, 0, 0)
        _add(pieces, run.data, done, end)
        return _joined(pieces, self.good, 0)

    def _frame(self, run: Run, place: i64, size: i64, api: i64, now_ns: i64) -> list[Buffer] | None:
        """The frame that is sent in place of an answer; None: the answer itself. Sets ``fault``."""
        change: AnswerChange | None = None
        if api < 0:
            taken = self._take(api)
            if isinstance(taken, bytes):
                return [INT32.header_of(len(taken)), taken]
            change, api = taken, taken.api
        new = self._in_head(run, size, api) if place == IN_HEAD else self._whole(run.data, place, place + size, api)
        if self.fault:
            return None
        self._look(api, now_ns)
        if change is None:
            return new
        if new is None and run.head is not None and place == IN_HEAD:
            new = [*run.head, memoryview(run.data)[: run.first]]
        elif new is None:
            new = [memoryview(run.data)[place - HEADER : place + size]]
        return self._changed(change, new, size, size)

    def _take(self, api: i64) -> "bytes | AnswerChange":
        assert self._pairing.prepared is not None, "a number below 0 is that of a prepared answer"
        return self._pairing.prepared.take(-api)

    def _changed(self, change: AnswerChange, pieces: list[Buffer], size: i64, asked: i64) -> list[Buffer] | None:
        """A frame, or its first pieces, as ``change`` says. ``pieces``: the frame after other changes of its body, or its beginning. ``size``,
        ``asked``: of the body as it was received, and of that part of it that is there.
        """
        here: i64 = -HEADER
        for piece in pieces:
            here += len(piece)
        whole = size + here - asked
        part = here if change.needs_whole else min(here, FIRST_PART)
        body: list[Buffer] = []
        refer(pieces, HEADER, part, body)
        try:
            new = change.apply(b"".join(body), whole)
        except KafkaFormatError as error:
            self.fault = f"an answer to {_name(change.api)}: {error}"
            return None
        changed: list[Buffer] = [INT32.header_of(whole + len(new) - part), new]
        if part < here:
            refer(pieces, HEADER + part, here - part, changed)
        return changed

    def _look(self, api: i64, now_ns: i64) -> None:
        """Tell the cluster which brokers an answer named; version 0 does not name their racks."""
        if api >> 16 == METADATA and api & 0xFFFF != 0 and self._brokers is not None:
            self._brokers.cluster.look(self._brokers.rewriter.brokers, now_ns)

    def _carried(self, api: i64) -> i64:
        """Where an answer has addresses that are replaced."""
        return NONE if self._brokers is None else carries_addresses(api >> 16, api & 0xFFFF)

    def _whole(self, data: bytes, start: i64, end: i64, api: i64, size: i64 = -1) -> list[Buffer] | None:
        """The frame that is sent in place of the one whose body is in ``data``; None: that one. ``size``: of the whole body, if a part is there."""
        if not self._is_rewritten(api):
            return None
        key, version = api >> 16, api & 0xFFFF
        new: list[bytes] | None = None
        try:
            if key == API_VERSIONS:
                new = narrowed(version, data, start, end, None if self._judge is None else self._judge.greatest)
            elif self._brokers is not None:
                new = self._brokers.rewriter.rewrite(key, version, data, start, end, size)
        except KafkaFormatError as error:
            self.fault = f"an answer to {_name(api)}: {error}"
            return None
        if new is None:
            return None
        length: i64 = size - (end - start) if size >= 0 else 0
        for piece in new:
            length += len(piece)
        return [INT32.header_of(length), *new]

    def _is_rewritten(self, api: i64) -> bool:
        """Whether something in an answer is replaced. One that is not known is not where every version is passed."""
        if api >> 16 == API_VERSIONS:
            if not self.narrow and (self._judge is None or self._judge.greatest is None):
                return False
        elif self._carried(api) == NONE:
            return False
        return self.narrow or understands(api >> 16, api & 0xFFFF)

    def _in_head(self, run: Run, size: i64, api: i64) -> list[Buffer] | None:
        """As ``_whole``, for the first frame of a run, of which earlier reads have returned a part."""
        assert run.head is not None, "it began in an earlier read"
        if not self._is_rewritten(api):
            return None
        if self._carried(api) == TAIL:
            eraser = self._begin_eraser(api, size)
            last: Buffer = run.data if run.first == len(run.data) else memoryview(run.data)[: run.first]
            new = None if eraser is None else self._erase(eraser, [*run.head, last], HEADER)
            if size > WHOLE_UP_TO or (new is None and not self.fault):
                return new
            self.fault = ""  # it may be that of an answer without room, which has some when it is whole
        if size <= WHOLE_UP_TO or api >> 16 == FIND_COORDINATOR:
            return self._whole(run.prefix(HEADER + size), HEADER, HEADER + size, api)
        part = run.prefix(HEADER + FIRST_PART)
        new = self._whole(part, HEADER, HEADER + FIRST_PART, api, size)
        if new is not None:
            refer([*run.head, memoryview(run.data)[: run.first]], HEADER + FIRST_PART, size - FIRST_PART, new)
        return new

    # Answers in pieces.

    def answer_part(self, run: Run, now_ns: i64) -> Run:
        """The piece that is sent in place of a piece of an answer; sets ``fault``. The lease stays with ``run``."""
        self.fault = ""
        if run.part & PART_FIRST:
            return self._first_part(run, now_ns)
        eraser = self._eraser
        if eraser is None:
            return run
        if run.part & PART_LAST:
            self._eraser = None
        new = self._erase(eraser, run.pieces(), 0)
        return run if new is None or self.fault else _joined(new, run.frames, run.part)

    def was_piped(self, size: i64, frames: i64) -> None:
        """So many bytes were passed on without a look, at most ``pipe_limit``. ``frames``: 1 if they complete the frame."""
        if frames != 0:
            self._eraser = None
        elif self._eraser is not None:
            self._eraser.pass_by(size)

    def _first_part(self, run: Run, now_ns: i64) -> Run:
        pairing = self._pairing
        self._eraser = None
        if pairing.lost:
            self.fault = LOST
        if len(pairing.found) == 0 or self.fault:
            return run
        size, api = pairing.found[1], pairing.found[2]
        taken = self._take(api) if api < 0 else b""
        if isinstance(taken, AnswerChange):
            return self._change_first(run, taken, size, now_ns)
        if api < 0 or api >> 16 == API_VERSIONS:
            self.fault = f"an answer of {size} bytes to {_name(max(api, API_VERSIONS << 16))}"
            return run
        new = self._rewritten_first(run, size, api, now_ns)
        return run if new is None or self.fault else _joined(new, run.frames, run.part)

    def _change_first(self, run: Run, change: AnswerChange, size: i64, now_ns: i64) -> Run:
        new = self._rewritten_first(run, size, change.api, now_ns)
        if change.needs_whole and not self.fault:
            self.fault = f"an answer of {size} bytes to {_name(change.api)}, whose list must be whole: see forwarding.responses"
        if not self.fault:
            new = self._changed(change, run.pieces() if new is None else new, size, run.size - HEADER)
        return run if new is None or self.fault else _joined(new, run.frames, run.part)

    def _rewritten_first(self, run: Run, size: i64, api: i64, now_ns: i64) -> list[Buffer] | None:
        """The first piece of an answer with other addresses, or without any; None: as it is."""
        if not self._is_rewritten(api):
            return None
        if self._carried(api) == TAIL:
            eraser = self._begin_eraser(api, size)
            if eraser is None:
                return None
            if run.part & PART_LAST == 0:
                self._eraser = eraser
            return self._erase(eraser, run.pieces(), HEADER)
        part = b"".join(run.pieces())
        new = self._whole(part, HEADER, i64(len(part)), api, size)
        self._look(api, now_ns)
        return new

    def _begin_eraser(self, api: i64, size: i64) -> EndpointEraser | None:
        try:
            return EndpointEraser(api >> 16, api & 0xFFFF, size)
        except KafkaFormatError as error:
            self.fault = str(error)
            return None

    def _erase(self, eraser: EndpointEraser, pieces: list[Buffer], skip: i64) -> list[Buffer] | None:
        """Look through a piece of a frame in several parts, behind its first ``skip`` bytes, which are the header; None: nothing is to be erased."""
        found: list[Buffer] = []
        changed = False
        try:
            for piece in pieces:
                size: i64 = len(piece)
                begin = min(skip, size)
                skip -= begin
                keep = size
                if begin < size:
                    keep = eraser.feed(piece if isinstance(piece, bytes) else bytes(piece), begin, size)
                if keep == size:
                    found.append(piece)
                    continue
                changed = True
                if keep != 0:
                    found.append(piece[:keep])
                found.append(eraser.replacement)
        except KafkaFormatError as error:
            self.fault = f"an answer in pieces: {error}"
        return found if changed else None


def _is_in(table: "vec[i32]", key: i64, version: i64) -> bool:
    return 0 <= key < i64(len(table)) and i64(table[key]) >> 16 <= version <= i64(table[key]) & 0xFFFF


def _name(api: i64) -> str:
    known = api_with(int(api >> 16))
    return f"version {api & 0xFFFF} of {f'API {api >> 16}' if known is None else known.name}"


def _add(pieces: list[Buffer], data: bytes, begin: i64, end: i64) -> None:
    if begin < end:
        pieces.append(data[begin:end] if end - begin < VIEW_FROM else memoryview(data)[begin:end])


def _joined(pieces: list[Buffer], frames: i64, part: i64) -> Run:
    """A run of pieces without a lease, in one piece if it is short."""
    size: i64 = 0
    for piece in pieces:
        size += len(piece)
    if size < JOIN_BELOW:
        return Run(None, 0, b"".join(pieces), 0 if part == 0 else size, size, frames, 0, part, INT32)
    return Run(pieces, size, b"", 0, 0, frames, 0, part, INT32)
