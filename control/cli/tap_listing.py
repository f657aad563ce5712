"""The output of ``framegate tap ls`` and ``tap consumers``: streams and segments, from their headers, and the position of each consumer."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import Any, Final

from framegate.control.cli.output import age_text, print_json, print_table, size_text
from framegate.control.cli.tap_records import moment_text
from framegate.proxy.tap.consumer import consumer_in_use, consumer_owner, read_consumers
from framegate.proxy.tap.log_reader import (
    BlockRef,
    DamagedBlockError,
    OffsetVanishedError,
    Segment,
    UnknownVersionError,
    read_raw,
    segment_seal,
    segments,
    streams,
    walk_segment,
)
from framegate.proxy.tap.record import CONSUMERS_FOLDER, KIND_GAP, REASON_SAMPLED, SEAL_FINAL, certainty


@dataclasses.dataclass(slots=True)
class SegmentState:
    """One segment, or the sums of several."""

    stream: str  # the folder's name
    base: int  # offset of the (first) segment; ``end``: the offset after the last complete block
    end: int
    size: int  # of the files, bytes
    state: str  # ``open``, ``sealed``, ``final`` (the stream ends here, accounted for), ``damaged``
    fault: str = ""  # why the segment is damaged
    # segments, blocks: their number
    segments: int = 1
    blocks: int = 0
    # first_ns, last_ns: capture time, wall clock; None without blocks
    first_ns: int | None = None
    last_ns: int | None = None
    # requests, responses: frames stored
    requests: int = 0
    responses: int = 0
    # lost, at_most: frames that gaps count exactly, or as an upper bound. sampled: frames left out by a rule. unknown: gaps without a count.
    lost: int = 0
    at_most: int = 0
    unknown: int = 0
    sampled: int = 0

    def add(self, ref: BlockRef) -> None:
        """Count a block by its header; its body is read only when it has gaps."""
        header = ref.header
        self.end = header.end
        self.blocks += 1
        self.first_ns = header.first_ns if self.first_ns is None else min(self.first_ns, header.first_ns)
        self.last_ns = header.last_ns if self.last_ns is None else max(self.last_ns, header.last_ns)
        self.requests += header.request_frames
        self.responses += header.response_frames
        may_have_gaps = header.lost_frames or not header.request_frames + header.response_frames
        for row in read_raw(ref).rows if may_have_gaps else ():
            if row.kind != KIND_GAP:
                continue
            sure = certainty(row.flags)
            if row.reason == REASON_SAMPLED:
                self.sampled += row.lost_frames
            elif sure == "unknown":
                self.unknown += 1
            elif sure == "at_most":
                self.at_most += row.lost_frames
            else:
                self.lost += row.lost_frames

    def join(self, later: "SegmentState") -> None:
        """Add the next segment of the same stream."""
        for name in ("size", "segments", "blocks", "requests", "responses", "lost", "at_most", "unknown", "sampled"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        firsts = [ns for ns in (self.first_ns, later.first_ns) if ns is not None]
        lasts = [ns for ns in (self.last_ns, later.last_ns) if ns is not None]
        self.first_ns, self.last_ns = min(firsts, default=None), max(lasts, default=None)
        self.end = later.end
        self.fault = self.fault or later.fault
        self.state = "damaged" if self.fault else later.state

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON; times as RFC 3339."""
        data = dataclasses.asdict(self)
        for key, name in (("first_ns", "first_time"), ("last_ns", "last_time")):
            ns = data.pop(key)
            data[name] = None if ns is None else moment_text(ns)
        return data


def list_segments(root: str) -> list[SegmentState]:
    """All segments of all streams, in order, except those that retention deletes meanwhile."""
    return [state for stream in streams(root) for state in _states(segments(root, stream))]


def _states(listed: list[Segment]) -> Iterator[SegmentState]:
    for index, segment in enumerate(listed):
        state = SegmentState(segment.stream, segment.base, segment.base, segment.size, "sealed" if segment.sealed else "open")
        try:
            _fill(state, segment, listed[index + 1].base if index + 1 < len(listed) else None)
        except OffsetVanishedError:
            continue
        yield state


def _fill(state: SegmentState, segment: Segment, following: int | None) -> None:
    """Count the blocks of a segment, and check its end. Raises OffsetVanishedError: the segment was deleted."""
    seal = None
    try:
        seal = segment_seal(segment)
        for ref in walk_segment(segment, segment.base):
            state.add(ref)
    except DamagedBlockError as damage:
        state.fault = damage.detail
    except UnknownVersionError as error:
        state.fault = str(error)
    left = segment.limit - state.end
    if not state.fault and seal is None and left > 0 and state.end != following and (segment.sealed or following is not None):
        state.fault = f"{left} bytes after its last block are not a block"
    if state.fault:
        state.state = "damaged"
    elif seal is not None and segment.sealed and seal.flags & SEAL_FINAL:
        state.state = "final"


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerState:
    """One registered consumer."""

    name: str  # its name
    owner: str  # the process that registered it; empty when not known
    working: bool | None  # whether a process reads under the name now; None when that cannot be found out here
    behind: dict[str, int]  # bytes not read yet, by stream
    updated_ns: int  # the time of its last offset, wall clock
    fault: str = ""  # why its file is invalid; retention then keeps everything for it


def consumer_states(root: str) -> list[ConsumerState]:
    """The consumers of a tap's directory, by name."""
    listed = {stream: segments(root, stream) for stream in streams(root)}
    ends = {stream: (files[0].base, files[-1].limit) for stream, files in listed.items() if files}
    found, unreadable = read_consumers(root)
    states = []
    for name in sorted({*found, *unreadable}):
        working, updated_ns = None, 0
        with contextlib.suppress(OSError):
            working = consumer_in_use(root, name)
        with contextlib.suppress(OSError):
            updated_ns = os.stat(os.path.join(root, CONSUMERS_FOLDER, name + ".json")).st_mtime_ns
        offsets = found.get(name, {})
        behind = {stream: max(0, end - max(first, offsets.get(stream, 0))) for stream, (first, end) in ends.items()}
        states.append(ConsumerState(name, consumer_owner(root, name), working, behind, updated_ns, unreadable.get(name, "")))
    return states


def _time(ns: int | None) -> str:
    return "-" if ns is None else moment_text(ns)[:19].replace("T", " ") + " UTC"


_COUNTS: Final = ("SIZE", "FROM", "TO", "REQUESTS", "RESPONSES", "LOST", "SAMPLED")


def _counts(row: SegmentState) -> tuple[Any, ...]:
    parts = [f"{row.lost:,}" if row.lost else "", f"at most {row.at_most:,}" if row.at_most else "", "unknown" if row.unknown else ""]
    lost = ", ".join(part for part in parts if part) or "0"
    return size_text(row.size), _time(row.first_ns), _time(row.last_ns), row.requests, row.responses, lost, row.sampled


def print_streams(states: list[SegmentState], consumers: list[ConsumerState], output: str) -> None:
    """Print one row for each stream."""
    parts = {stream: list(found) for stream, found in itertools.groupby(states, lambda state: state.stream)}
    rows = []
    for found in parts.values():
        rows.append(dataclasses.replace(found[0]))
        for later in found[1:]:
            rows[-1].join(later)
    behind = {row.stream: {state.name: state.behind.get(row.stream, 0) for state in consumers} for row in rows}
    if output == "json":
        print_json([{**row.as_dict(), "behind": behind[row.stream], "files": [part.as_dict() for part in parts[row.stream]]} for row in rows])
        return
    texts = [", ".join(f"{name} {size_text(size)}" for name, size in behind[row.stream].items()) or "-" for row in rows]
    print_table(
        ("STREAM", "STATE", "SEGMENTS", *_COUNTS, "BEHIND"),
        ((row.stream, row.state, row.segments, *_counts(row), text) for row, text in zip(rows, texts, strict=True)),
    )


def print_segments(states: list[SegmentState], output: str) -> None:
    """Print one row for each segment."""
    if output == "json":
        print_json([state.as_dict() for state in states])
        return
    rows = ((row.stream, row.base, row.state, row.blocks, *_counts(row)) for row in states)
    print_table(("STREAM", "BASE", "STATE", "BLOCKS", *_COUNTS), rows)


def print_consumers(states: list[ConsumerState], output: str, now_ns: int) -> None:
    """Print one row for each consumer."""
    if output == "json":
        rows = []
        for state in states:
            head = {"name": state.name, "owner": state.owner, "working": state.working, "behind_bytes": sum(state.behind.values())}
            rows.append({**head, "behind": state.behind, "update_time": moment_text(state.updated_ns), "fault": state.fault})
        print_json(rows)
        return
    words = {True: "yes", False: "no", None: "?"}
    print_table(
        ("NAME", "RUNNING", "STREAMS", "BEHIND", "UPDATED", "OWNER", "FAULT"),
        (
            (
                state.name, words[state.working], sum(size > 0 for size in state.behind.values()), size_text(sum(state.behind.values())),
                f"{age_text((now_ns - state.updated_ns) / 1e9)} ago", state.owner or "-", state.fault or "-",
            )
            for state in states
        ),
    )  # fmt: skip
