"""Pairing: which response belongs to which request, for listeners with ``protocol: kafka``.

Problem: latency and API of a response are known only with its request. And credentials must not reach the tap, but they are in ordinary frames, in
their responses, and after SaslHandshake v0 in frames that are not Kafka requests.

Rules:
- Brokers answer in order. Each pair has one FIFO of open requests in native arrays: the header's key, version and correlation id as the one int64
  that they are on the wire, the body's size, and the time of the run. A response must have the id of the first request, which is then removed.
- A Produce with acks=0 has no response and is not queued. One whose acks cannot be found may be such; in the queue it might stay for ever.
- Such a Produce, and a response without its request, turn pairing off for the connection and count ``lost``; they do not close the connection.
- Ids may decrease and repeat (Java, and all clients when they authenticate again), so only the order counts.
- Where answers are looked for that have addresses of brokers, or that framegate has prepared (``PreparedAnswers``), their places are in ``found``.
- Sensitive, body withheld: SaslHandshake (17) and SaslAuthenticate (36), their responses, and the raw tokens of both sides after SaslHandshake v0,
  until the client sends a plausible request header after at least one raw response. If pairing is lost on a connection that has authenticated, all
  later responses are sensitive.

No object is made per frame, and native code calls nothing else: a header is two loads. All framings that may carry Kafka have headers of one length.
"""

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.cells import ENDPOINT_BLOCK, RESPONSE_ERRORS
from framegate.proxy.kafka.addresses import lacks_endpoints
from framegate.proxy.kafka.client import Client, client_of
from framegate.proxy.kafka.error_codes import ERROR_HEAD, error_code, error_place
from framegate.proxy.kafka.produce_acks import NO_ACKS_FIELD, produce_acks
from framegate.proxy.network.run import Run
from framegate.proxy.relay.counters import Counts
from framegate.proxy.relay.kafka_rules import AnswerChange
from framegate.proxy.relay.pairing_stats import PairingStats, error_row, row_of
from framegate.proxy.relay.prepared_answers import PreparedAnswers
from framegate.proxy.tap.frame_tap import RequestFacts

MAX_OPEN: Final = 10_000  # Requests open on one connection above which the client is muted for ``peer`` until half of them are answered

FOUND: Final = 3  # numbers for each answer in ``Pairing.found``
IN_HEAD: Final = -1  # the place of an answer that began in an earlier read

_NOTE: Final = 1
_FIND: Final = 2
_API_VERSIONS: Final = 18
_SUBSTITUTE: Final = 18 << 48  # of an entry: ApiVersions, version 0
_PRODUCE: Final = 0
_JOIN_GROUP: Final = 11
_SYNC_GROUP: Final = 14
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_SMALL: Final = 16
_KEEP: Final = 256
_MAY_WAIT: Final = (1, 78, 19, 20, 21, 37, 43, 45)  # Fetch, ShareFetch, and what administrators ask: the client chooses how long it may take
_MAX_I32: Final = 2147483647
_ID: Final = 0xFFFFFFFF  # of an entry's bits, those of the correlation id
_HALF: Final = 1 << 31
_REQUEST_HEAD: Final = 8  # of a body: key, version, correlation id
_ANSWER_HEAD: Final = 4  # correlation id
_ERRORS: Final = ENDPOINT_BLOCK.at("framegate.kafka.response.errors", RESPONSE_ERRORS[0])
_PREFIX: Final = 512  # bytes of a frame in pieces; enough for acks after usual client and transactional ids
_LONG_PREFIX: Final = 131072  # likewise after the longest legal ones, 32767 bytes each, and as many bytes of tagged fields
_PLAUSIBLE_KEY: Final = 128
_PLAUSIBLE_VERSION: Final = 32


def _is_sasl(key: i64) -> bool:
    return key == _SASL_AUTHENTICATE if key != _SASL_HANDSHAKE else True


def _zeros(count: i64) -> "vec[i64]":
    out = vec[i64](capacity=count)
    zero: i64 = 0
    while count > 0:
        out = append(out, zero)
        count -= 1
    return out


def _small_zeros(count: i64) -> "vec[i32]":
    out = vec[i32](capacity=count)
    zero: i32 = 0
    while count > 0:
        out = append(out, zero)
        count -= 1
    return out


class Pairing:
    """The open requests of one pair. ``requests`` and ``answers`` are called once for each run; afterwards the attributes below describe that run."""

    def __init__(self, stats: PairingStats, prepared: PreparedAnswers | None = None, errors: Counts | None = None) -> None:
        self.open: i64 = 0  # requests that wait for an answer
        self.lost: bool = False  # pairing is off for this connection
        self.client: Client | None = None  # what the first request says of the client; None before it
        self.prepared: Final = prepared  # answers of framegate's own; None: none are prepared, and ``found`` stays empty
        # after ``answers``: of each answer that may have addresses of brokers, or has API versions, or is to be replaced by a prepared one, its place
        # in ``Run.data`` (or ``IN_HEAD``), its size, and the request's ``api key << 16 | version`` or, below 0, the number of that one
        self.found: vec[i64] = vec[i64]()
        self.lost_at: i64 = -1  # the index, in the run of answers, of the one with which pairing was lost; -1: of none
        self._finds: Final[i64] = 0 if prepared is None else _FIND  # then all frames are of the framing int32
        self.sensitive: vec[i32] = vec[i32]()  # indexes, within the run, of the frames whose bodies must be withheld from the tap
        self.keys: vec[i32] = vec[i32]()  # after ``answers`` with ``keep``: request key and version of each frame, -1 unknown
        self.latencies: vec[i32] = vec[i32]()  # likewise, microseconds, -1 unknown
        # request_sizes, correlation_ids: likewise, body bytes and correlation id of the request, -1 unknown
        self.request_sizes: vec[i32] = vec[i32]()
        self.correlation_ids: vec[i32] = vec[i32]()
        self.facts: RequestFacts | None = None  # of the requests, while a tap asks for them; else None
        self._stats = stats
        self._error_counts: Final = errors
        self._error_at: i64 = 0  # where answers to it have their error code; 0: nowhere
        self._counted: i64 = 0
        self._head: i64 = 0
        self._mask: i64 = _SMALL - 1
        self._entries: vec[i64] = _zeros(_SMALL)  # key, version, correlation id; 0 for a raw token
        self._sizes: vec[i32] = _small_zeros(_SMALL)  # of the body
        self._times: vec[i64] = _zeros(_SMALL)  # when it came, inverted (so below 0) for a raw token
        self._authenticated: bool = False
        self._raw: bool = False
        self._raw_answered: bool = False
        self._frames: i64 = 0

    @property
    def full(self) -> bool:
        """More requests are open than one connection may have."""
        return self.open > MAX_OPEN

    @property
    def oldest_ns(self) -> i64:
        """When the oldest open request came; 0: none is open."""
        if self.open == 0:
            return 0
        since = self._times[self._head]
        return ~since if since < 0 else since

    @property
    def oldest_api(self) -> i64:
        """The API of the oldest open request, as a row of ``MEASURED_APIS``."""
        return row_of(-1 if self.is_raw(0) else self._entries[self._head] >> 48)

    @property
    def is_strange(self) -> bool:
        """The oldest open request is none of Kafka's: other bytes that happen to begin with a size."""
        head = self._entries[self._head] >> 32
        key, version = head >> 16, head & 0xFFFF
        return key < 0 or key >= _PLAUSIBLE_KEY or version >= _PLAUSIBLE_VERSION

    def waits_since_ns(self, may_wait_ns: i64) -> i64:
        """Since when the broker should have answered the oldest open request, on the clock of ``oldest_ns``; 0 if that waits for other members of a
        group. A Fetch, and others whose clients choose how long they may take, have ``may_wait_ns``; it may be a time to come.
        """
        key, since_ns = self._entries[self._head] >> 48, self.oldest_ns
        if since_ns == 0 or key in (_JOIN_GROUP, _SYNC_GROUP):
            return 0
        return since_ns + may_wait_ns if key in _MAY_WAIT else since_ns

    def is_raw(self, place: i64) -> bool:
        """Whether the open request with so many before it is a raw token."""
        return self._times[(self._head + place) & self._mask] < 0

    def identify(self, run: Run) -> None:
        """Read the first request of the connection, for ``client``; the run may be its first piece."""
        header, size = run.first_sizes()
        whole = run.prefix(min(header + size, _LONG_PREFIX))
        self.client = client_of(whole[header:])

    def requests(self, run: Run, now_ns: i64) -> None:
        """The next whole frames from the client; sets ``sensitive``."""
        self._read_requests(run, now_ns)
        self._stats.end_asked()
        self._count_open()

    def _read_requests(self, run: Run, now_ns: i64) -> None:
        if len(self.sensitive):
            self.sensitive = vec[i32]()
        self._frames = 0
        facts = self.facts
        if facts is not None:
            facts.begin(run.frames)
        framing = run.framing
        header = framing.most_header
        if run.head is not None:
            head = run.prefix(_PREFIX)
            size = framing.body_size(head, 0)
            if facts is not None or not self._has_acks(head, header, size):
                head = run.prefix(_LONG_PREFIX)
            self._request(head, header, min(i64(len(head)), header + size), size, now_ns)
        data = run.data
        pos = run.first
        end = run.end
        is_int32 = self._finds != 0
        while pos < end:
            if is_int32:
                size = i64(read_i32_be(data, pos))
            else:
                size = framing.body_size(data, pos)
            pos += header
            self._request(data, pos, pos + size, size, now_ns)
            pos += size

    def request_part(self, run: Run, now_ns: i64) -> None:
        """The first piece of a request that is cut through; sets ``sensitive``, whose index is 0."""
        if len(self.sensitive):
            self.sensitive = vec[i32]()
        self._frames = 0
        if self.facts is not None:
            self.facts.begin(1)
        head = run.prefix(_LONG_PREFIX)
        self._request(head, run.framing.most_header, i64(len(head)), run.framing.body_size(head, 0), now_ns)
        self._stats.end_asked()
        self._count_open()

    def _has_acks(self, head: bytes, start: i64, size: i64) -> bool:
        """Whether the head of a frame in pieces is enough: it is no Produce, or has the acks, or is the whole frame."""
        have = i64(len(head))
        if have < start + _REQUEST_HEAD or have >= start + size or i64(read_i16_be(head, start)) != _PRODUCE:
            return True
        return produce_acks(head, start, have, i64(read_i16_be(head, start + 2))) != NO_ACKS_FIELD

    def _request(self, data: bytes, pos: i64, end: i64, size: i64, now_ns: i64) -> None:
        index = self._frames
        self._frames = index + 1
        if size < _REQUEST_HEAD:
            self._odd_request(index, size, now_ns)
            return
        api = i64(read_i32_be(data, pos))
        key = api >> 16
        version = api & 0xFFFF
        if self._raw and not self._ends_raw(key, version):
            self._odd_request(index, size, now_ns)
            return
        stats = self._stats
        if key == stats.asked_key:
            stats.asked_bytes += size
        else:
            stats.begin_asked(key, size)
        if self.facts is not None:
            self.facts.add(api, data, pos, end)
        if _is_sasl(key):
            self._note_sasl(index, key, version)
        if self.lost:
            return
        if key == _PRODUCE:
            acks = produce_acks(data, pos, end, version)
            if acks == 0:
                return
            if acks == NO_ACKS_FIELD:
                self.lose()
                return
        self._push(read_i64_be(data, pos), size, now_ns)

    def _note_sasl(self, index: i64, key: i64, version: i64) -> None:
        self.sensitive = append(self.sensitive, i32(index))
        self._authenticated = True
        if key == _SASL_HANDSHAKE and version == 0:
            self._raw = True
            self._raw_answered = False

    def _ends_raw(self, key: i64, version: i64) -> bool:
        """Whether a frame after raw tokens is a request again."""
        self._raw = not self._raw_answered or key < 0 or key >= _PLAUSIBLE_KEY or version >= _PLAUSIBLE_VERSION
        return not self._raw

    def _odd_request(self, index: i64, size: i64, now_ns: i64) -> None:
        """A frame without a request header: a raw token, or no Kafka at all."""
        self._stats.begin_asked(-1, size)
        if self.facts is not None:
            self.facts.add(-1, b"", 0, 0)
        if self._raw:
            self.sensitive = append(self.sensitive, i32(index))
            if not self.lost:
                self._push(0, size, ~now_ns)
        else:
            self.lose()

    def _push(self, entry: i64, size: i64, time_ns: i64) -> None:
        if self.open > self._mask:
            self._resize((self._mask + 1) * 2)
        slot = (self._head + self.open) & self._mask
        self._entries[slot] = entry
        self._sizes[slot] = i32(size)
        self._times[slot] = time_ns
        self.open += 1

    def _resize(self, capacity: i64) -> None:
        entries, sizes, times = _zeros(capacity), _small_zeros(capacity), _zeros(capacity)
        for index in range(self.open):
            slot = (self._head + index) & self._mask
            entries[index] = self._entries[slot]
            sizes[index] = self._sizes[slot]
            times[index] = self._times[slot]
        self._entries, self._sizes, self._times = entries, sizes, times
        self._head = 0
        self._mask = capacity - 1

    def replace_last(self, answer: bytes) -> None:
        """The last open request is replaced by an ApiVersions request of version 0 with its id, and the response by ``answer``, a body."""
        assert self.prepared is not None, "answers are prepared for listeners with brokers"
        slot = (self._head + self.open - 1) & self._mask
        self._entries[slot] = _SUBSTITUTE | (self._entries[slot] & _ID)
        self._sizes[slot] = i32(-self.prepared.put(answer))

    def change_last(self, change: AnswerChange) -> None:
        """The response to the last open request will be changed."""
        assert self.prepared is not None, "answers are changed for listeners with rules"
        self._sizes[(self._head + self.open - 1) & self._mask] = i32(-self.prepared.put(change))

    def take_out(self, place: i64) -> None:
        """Remove the open request that has so many others before it: it will have no response."""
        self._move(place, self.open - 1)
        self.open -= 1
        self._count_open()

    def put_in(self, place: i64, run: Run, now_ns: i64) -> None:
        """As ``requests``, for one frame, with so many open requests before it."""
        facts = self.facts
        self.facts = None
        before = self.open
        self._read_requests(run, now_ns)
        self._stats.asked_bytes = 0  # the received frame was counted
        self._count_open()
        self.facts = facts
        if self.open > before:
            self._move(before, place)

    def _move(self, place: i64, to: i64) -> None:
        """Move one open request to another place."""
        step: i64 = 1 if to > place else -1
        while place != to:
            here = (self._head + place) & self._mask
            place += step
            there = (self._head + place) & self._mask
            entry, size, time_ns = self._entries[here], self._sizes[here], self._times[here]
            self._entries[here], self._sizes[here], self._times[here] = self._entries[there], self._sizes[there], self._times[there]
            self._entries[there], self._sizes[there], self._times[there] = entry, size, time_ns

    def answers(self, run: Run, now_ns: i64, keep: bool) -> None:
        """The next whole frames from the upstream; sets ``sensitive``. ``now_ns``: time of the run, of the same clock as the requests'. ``keep``:
        also note ``keys``, ``latencies``, ``request_sizes`` and ``correlation_ids``, for a tap.
        """
        if len(self.sensitive):
            self.sensitive = vec[i32]()
        notes = self._finds
        if len(self.found):
            self.found = vec[i64]()
        if keep:
            notes |= _NOTE
            self.keys = vec[i32](capacity=run.frames)
            self.latencies = vec[i32](capacity=run.frames)
            self.request_sizes = vec[i32](capacity=run.frames)
            self.correlation_ids = vec[i32](capacity=run.frames)
        self._frames = 0
        framing = run.framing
        header = framing.most_header
        if run.head is not None:
            head = run.prefix(header + ERROR_HEAD)
            self._answer(head, header, framing.body_size(head, 0), now_ns, notes)
            if len(self.found):
                self.found[0] = IN_HEAD
        data = run.data
        pos = run.first
        end = run.end
        while pos < end:
            if notes & _FIND:
                size = i64(read_i32_be(data, pos))
            else:
                size = framing.body_size(data, pos)
            pos += header
            self._answer(data, pos, size, now_ns, notes)
            pos += size
        self._stats.end_answered(now_ns)
        self._count_open()
        if self.open == 0 and self._mask >= _KEEP:
            self._resize(_SMALL)

    def answer_part(self, run: Run, now_ns: i64) -> None:
        """The first piece of an answer that is cut through; sets ``sensitive``, ``found``, and what is noted with ``keep``, index 0."""
        if len(self.sensitive):
            self.sensitive = vec[i32]()
        if len(self.found):
            self.found = vec[i64]()
        self.keys = vec[i32]()
        self.latencies = vec[i32]()
        self.request_sizes = vec[i32]()
        self.correlation_ids = vec[i32]()
        self._frames = 0
        header = run.framing.most_header
        head = run.prefix(header + ERROR_HEAD)
        self._answer(head, header, run.framing.body_size(head, 0), now_ns, self._finds | _NOTE)
        self._stats.end_answered(now_ns)
        self._count_open()

    def _answer(self, data: bytes, pos: i64, size: i64, now_ns: i64, notes: i64) -> None:
        if not self.lost and self._take(data, pos, size):
            slot = self._head
            time_ns = self._times[slot]
            size_asked = i64(self._sizes[slot])
            entry = self._entries[slot]
            api = entry >> 32
            correlation = entry
            self._drop_head()
            stats = self._stats
            if time_ns == stats.answered_since_ns and stats.answered_times != 0 and api >> 16 == stats.answered_key:
                stats.answered_times += 1
                stats.answered_bytes += size
            else:
                self._begin_answered(api, time_ns, size, now_ns)
            if self._error_at != 0:
                self._look_for_error(data, pos, pos + size)
            if time_ns < 0:
                api = -1
                correlation = -1
                time_ns = ~time_ns
                self._raw_answered = True
                self._withhold()
            elif _is_sasl(api >> 16):
                self._withhold()
            if notes & _FIND and (
                size_asked < 0 or api >> 16 == _API_VERSIONS or not lacks_endpoints(api >> 16, api & 0xFFFF, data, pos, pos + size)
            ):
                self.found = append(append(append(self.found, pos), size), api if size_asked >= 0 else size_asked)
                size_asked = max(size_asked, -1)
            if notes & _NOTE:
                self._keep(api, (now_ns - time_ns) // 1000, size_asked, correlation)
        else:
            self._stats.count_unpaired(size)
            if self._authenticated:
                self._raw_answered = True
                self._withhold()
            if notes & _NOTE:
                self._keep(-1, -1, -1, -1)
        self._frames += 1

    def _keep(self, api: i64, latency_us: i64, size: i64, correlation: i64) -> None:
        if latency_us > _MAX_I32:
            latency_us = _MAX_I32
        self.keys = append(self.keys, i32(api))
        self.latencies = append(self.latencies, i32(latency_us))
        self.request_sizes = append(self.request_sizes, i32(size))
        self.correlation_ids = append(self.correlation_ids, i32(correlation - ((correlation + _HALF) & ~_ID)))

    def _withhold(self) -> None:
        self.sensitive = append(self.sensitive, i32(self._frames))

    def _take(self, data: bytes, pos: i64, size: i64) -> bool:
        """Whether the first open request is that of this response; if not, pairing is lost."""
        if self.open > 0 and self._times[self._head] < 0:
            return True
        if size >= _ANSWER_HEAD:
            correlation = i64(read_i32_be(data, pos)) & _ID
            if self.open > 0 and self._entries[self._head] & _ID == correlation:
                return True
        self.lose()
        return False

    def _begin_answered(self, api: i64, time_ns: i64, size: i64, now_ns: i64) -> None:
        """An answer of another API than the one before it, or to a request of another run. A client has one version of each API."""
        raw = time_ns < 0
        self._error_at = 0 if raw or self._error_counts is None else error_place(api)
        self._stats.begin_answered(-1 if raw else api >> 16, ~time_ns if raw else time_ns, size, now_ns)

    def _look_for_error(self, data: bytes, start: i64, end: i64) -> None:
        code = error_code(self._error_at, data, start, end)
        if code != 0 and self._error_counts is not None:
            self._error_counts.count(_ERRORS + error_row(code))

    def _drop_head(self) -> None:
        self._head = (self._head + 1) & self._mask
        self.open -= 1

    def lose(self) -> None:
        """Turn pairing off for this connection."""
        if not self.lost:
            self.lost = True
            self.lost_at = self._frames
            self._stats.lost += 1
            self._forget()

    def release(self) -> None:
        """Remove all open requests, and the prepared answers: the pair ends."""
        if self.prepared is not None:
            self.prepared.close()
        self._forget()

    def _forget(self) -> None:
        self.open = 0
        self._count_open()
        self._head = 0
        self._mask = _SMALL - 1
        self._entries, self._sizes, self._times = _zeros(_SMALL), _small_zeros(_SMALL), _zeros(_SMALL)

    def _count_open(self) -> None:
        """Update the listener's count of open requests; once a run."""
        self._stats.open += self.open - self._counted
        self._counted = self.open
