"""Records of the tap's log for display: the filter that selects them, and the line of each.

A record is a frame, another row of the log, or a part that cannot be read. Control characters in text from clients are escaped.
"""

import dataclasses
import datetime
import fnmatch
import functools
import itertools
import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from framegate.control.cli.output import counted, shown, size_text
from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.tap import record
from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.log_block import LogBlock

_SECOND: Final = 1_000_000_000
_PRINTABLE: Final = bytes(byte if 0x20 <= byte < 0x7F else 0x2E for byte in range(256))
_CLIENT_BYTES: Final = 512  # Body bytes that are searched for the client's name; longer names are cut


class Request(NamedTuple):
    """The header of a Kafka request, or the request that a response belongs to."""

    api: int  # the API's key
    version: int  # of the API
    correlation: int | None  # correlation id; None when it is not in the log
    client: str | None  # client.id; None when there is none, or for a response


class Frame(NamedTuple):
    """One frame. ``kept`` is the part of the body in the log, valid until the next record is read; ``size`` is the body's size on the wire."""

    stream: str
    row: record.ChunkRow
    block: LogBlock
    number: int
    size: int
    kept: memoryview
    request: Request | None
    latency_us: int | None


class Entry(NamedTuple):
    """A row of the log, of any kind except ``piece``, and its block."""

    row: record.ChunkRow
    block: LogBlock


class Trouble(NamedTuple):
    """A part of a stream that cannot be read, from ``offset`` to ``available``; None: to the end. ``vanished``: it was deleted. ``taken``: retention
    deleted it.
    """

    stream: str
    offset: int
    available: int | None
    vanished: bool
    detail: str
    taken: bool = False


class Timed(NamedTuple):
    """An item with its time for sorting; without an item, the earliest time of the next items."""

    at_ns: int
    item: Entry | Trouble | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A filter for records. Empty fields and None select all; a record must match every field."""

    # since_ns, until_ns: capture time, from and before
    since_ns: int | None = None
    until_ns: int | None = None
    connections: frozenset[int] = frozenset()  # ids
    listeners: frozenset[str] = frozenset()  # names
    direction: str | None = None  # of ``DIRECTIONS``
    apis: frozenset[int] = frozenset()  # keys
    client: str | None = None  # shell pattern of a Kafka client.id; only requests have one
    # min_size, max_size: of the body on the wire, bytes
    min_size: int = 0
    max_size: int | None = None
    totals: bool = False  # whether rows of totals are wanted, too

    def block(self, header: BlockHeader) -> bool:
        """Whether a block may have wanted records, by the times in its header. These are not reliable when the clock was set back, and a gap may be
        much older than its block.
        """
        if header.first_ns > header.last_ns:
            return True
        if self.since_ns is not None and header.last_ns < self.since_ns:
            return False
        stores = header.request_frames + header.response_frames
        return self.until_ns is None or header.first_ns < self.until_ns or header.lost_frames > 0 or not stores

    def chunk(self, block: LogBlock, row: record.ChunkRow) -> bool:
        """Whether a row may have wanted records; a gap may have when its frames could match."""
        if row.kind == record.KIND_TOTALS and not self.totals:
            return False
        start, end = _span(row)
        if (self.since_ns is not None and end < self.since_ns) or (self.until_ns is not None and start >= self.until_ns):
            return False
        if row.kind not in (record.KIND_FRAMES, record.KIND_GAP, record.KIND_TOTALS, record.KIND_CONNECTION):
            return True
        if self.direction is not None and row.kind != record.KIND_CONNECTION and record.DIRECTIONS[row.direction] != self.direction:
            return False
        if self.listeners and row.listener >= 0 and block.strings[row.listener] not in self.listeners:
            return False
        return not self.connections or row.kind == record.KIND_TOTALS or row.connection < 0 or row.connection in self.connections

    def frame(self, size: int, request: Request | None) -> bool:
        if size < self.min_size or (self.max_size is not None and size > self.max_size):
            return False
        if self.apis and (request is None or request.api not in self.apis):
            return False
        return self.client is None or (request is not None and request.client is not None and fnmatch.fnmatchcase(request.client, self.client))


def _span(row: record.ChunkRow) -> tuple[int, int]:
    """The first and the last capture time of a row; logs before version 3 have the time of the row as the last."""
    if row.kind in (record.KIND_GAP, record.KIND_TOTALS):
        return row.lost_from_ns or row.capture_ns, row.original_bytes or row.capture_ns
    return row.capture_ns, row.capture_ns


def frames_of(block: LogBlock, row: record.ChunkRow, wanted: Wanted) -> Iterator[Frame]:
    """The wanted frames of a chunk, in order."""
    data = block.chunk_data(row)
    starts = block.starts(row)
    answers = block.answers(row)
    kafka = row.protocol == record.PROTOCOL_KAFKA
    for index, (start, end) in enumerate(zip(starts, itertools.chain(starts[1:], (row.data_length,)), strict=True)):
        size = int.from_bytes(data[start : start + record.FRAME_HEADER_BYTES], "big")
        kept = data[start + record.FRAME_HEADER_BYTES : end]
        latency = None
        request = None
        if answers is not None:
            request = _answered(answers[0][index], kept if row.capture == record.CAPTURE_FULL else kept[:0])
            latency = answers[1][index] if answers[1][index] >= 0 else None
        elif kafka and row.direction == record.DIRECTION_REQUEST and row.capture == record.CAPTURE_FULL:
            request = _header(kept)
        if wanted.frame(size, request):
            yield Frame(block.stream, row, block, row.first_frame + index, size, kept, request, latency)


def _answered(key: int, body: memoryview) -> Request | None:
    """The request that a response belongs to; the response's header is the correlation id."""
    correlation = int.from_bytes(body[:4], "big", signed=True) if len(body) >= 4 else None
    return None if key < 0 else Request(key >> 16, key & 0xFFFF, correlation, None)


def _header(body: memoryview) -> Request | None:
    """The header of a request; None when it is too short."""
    if len(body) < 8:
        return None
    key, version = int.from_bytes(body[:2], "big", signed=True), int.from_bytes(body[2:4], "big", signed=True)
    if key < 0 or version < 0:
        return None
    length = int.from_bytes(body[8:10], "big", signed=True) if len(body) >= 10 else -1
    name = bytes(body[10 : 10 + min(length, _CLIENT_BYTES)]).decode(errors="replace") if length >= 0 else None
    return Request(key, version, int.from_bytes(body[4:8], "big", signed=True), name)


def moment_text(ns: int) -> str:
    """Wall clock as RFC 3339, to the microsecond; ``--since`` takes this form."""
    second = _second_text(ns // _SECOND)
    return f"{second}.{ns % _SECOND // 1000:06d}Z" if second else f"{ns}ns"


@functools.lru_cache(64)
def _second_text(seconds: int) -> str:
    """Empty when the time is outside the calendar."""
    try:
        return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return ""


def api_text(request: Request | None) -> str:
    """``Produce v9 #17 client``; ``-`` when the API is not known."""
    if request is None:
        return "-"
    words = [KAFKA_APIS.get(request.api, f"api-{request.api}"), f"v{request.version}"]
    if request.correlation is not None:
        words.append(f"#{request.correlation}")
    if request.client:
        words.append(request.client)
    return " ".join(words)


def frame_line(frame: Frame, payload: int) -> str:
    """Time, connection, direction, listener, size, API, latency, rule, and at most ``payload`` bytes of the body."""
    row, word = frame.row, frame.block.word
    latency = "-" if frame.latency_us is None else f"{frame.latency_us / 1000:.3f}ms"
    direction, listener = record.DIRECTIONS[row.direction], word(row.listener) or "-"
    fields = (
        f"{moment_text(row.capture_ns)} {format_connection_id(row.connection):<10} {direction:<8} {listener:<8}"
        f" {frame.size:>8} {api_text(frame.request):<20} {latency:>9} {word(row.rule) or '-'}"
    )
    return shown(f"{fields}  {_body_text(frame, payload)}").rstrip()


def is_whole(frame: Frame) -> bool:
    """Whether the whole body is in the log."""
    return frame.row.capture == record.CAPTURE_FULL and len(frame.kept) == frame.size


def _body_text(frame: Frame, payload: int) -> str:
    row, kept = frame.row, frame.kept
    if row.flags & record.FLAG_WITHHELD and not kept:
        return "(withheld)" if frame.size else ""
    if row.capture == record.CAPTURE_HASH and len(kept) == record.HASH_BYTES:
        return f"(hash {kept.hex()})"
    first = bytes(kept[:payload])
    text = f"{first.hex(' ')} |{first.translate(_PRINTABLE).decode()}|" if first else ""
    if len(kept) == frame.size:
        return text
    why = ", pieces_lost" if row.reason == record.REASON_PIECES_LOST else ""
    return f"{text} ({len(kept)} of {frame.size} B kept{why})".lstrip()


def entry_line(entry: Entry) -> str:
    """The line of a gap, of totals, of a clock change, of the end of a connection or of new rules."""
    row = entry.row
    if row.kind == record.KIND_GAP:
        text = f"{_lost_text(row)}, {size_text(row.lost_bytes)}, {_span_text(row)}{_who(entry)}"
    elif row.kind == record.KIND_TOTALS:
        text = f"{counted(row.lost_frames, 'frame')} seen, {size_text(row.lost_bytes)}, {_span_text(row)}{_who(entry)}"
    elif row.kind == record.KIND_CLOCK:
        text = f"the clock was set back from {moment_text(row.lost_from_ns)} to {moment_text(row.capture_ns)}"
    elif row.kind == record.KIND_CONNECTION:
        text = f"{moment_text(row.original_bytes)} {_end_text(entry)}"
    else:
        text = f"{moment_text(row.capture_ns)} tap rules from here on: {_rule_names(entry.block.word(row.rule))}"
    return shown(f"-- {text}")


def _end_text(entry: Entry) -> str:
    row, word = entry.row, entry.block.word
    if row.connection < 0:
        return f"{counted(row.lost_frames, 'connection')} ended without a record: {record.REASONS[row.reason]}, {word(row.listener) or '-'}"
    end = json.loads(word(row.rule) or "{}")
    traffic = ", ".join(f"{counted(end['frames'][each], each)} {size_text(end['bytes'][each])}" for each in record.DIRECTIONS)
    why = f"{end['cause']} ({end['side']}){f': {detail}' if (detail := end.get('detail')) else ''}"
    lasted = (row.original_bytes - row.lost_from_ns) / _SECOND
    return f"{format_connection_id(row.connection)} {word(row.listener) or '-'} {word(row.peer) or '-'} ended after {lasted:.3f}s, {traffic}: {why}"


def _rule_names(text: str | None) -> str:
    """The names of the rules in force, from JSON; the text itself when it cannot be parsed."""
    try:
        return ", ".join(rule["name"] for rule in json.loads(text or "[]")) or "none"
    except (ValueError, TypeError, KeyError):
        return text or "none"


def _lost_text(row: record.ChunkRow) -> str:
    sure = record.certainty(row.flags)
    count = {"exact": counted(row.lost_frames, "frame"), "at_most": f"at most {counted(row.lost_frames, 'frame')}", "unknown": "unknown frames"}[sure]
    return f"{count} {'left out' if row.reason == record.REASON_SAMPLED else 'lost'}: {record.REASONS[row.reason]} ({sure})"


def _span_text(row: record.ChunkRow) -> str:
    start, end = _span(row)
    return moment_text(start) if start == end else f"{moment_text(start)} to {moment_text(end)}"


def _who(entry: Entry) -> str:
    row, word = entry.row, entry.block.word
    connection = f" {format_connection_id(row.connection)}" if row.connection >= 0 and row.kind == record.KIND_GAP else ""
    listener = word(row.listener)
    rule = word(row.rule)
    return f",{connection} {record.DIRECTIONS[row.direction]}{f' {listener}' if listener else ''}{f' {rule}' if rule else ''}"


def trouble_line(trouble: Trouble) -> str:
    """The line of a part of the log that cannot be read."""
    going = "nothing after it can be read" if trouble.available is None else f"the log continues at {trouble.available}"
    what = f"lost: {'vanished' if trouble.vanished else 'damaged'} (unknown)" if not trouble.taken else "not shown: retention deleted them"
    return shown(f"-- unknown frames {what}, {trouble.stream} at {trouble.offset}: {trouble.detail}; {going}")


def not_shown_line(frames: int, lost: int, *, bound: bool) -> str:
    """The line about frames that a slow reader left out. ``lost``: lost frames in the gap rows left out. ``bound``: the frames were not checked
    against the filter, so ``frames`` is an upper bound.
    """
    besides = f", and gaps with {lost:,} lost" if lost else ""
    return f"-- {'at most ' if bound else ''}{counted(frames, 'frame')} not shown{besides}"
