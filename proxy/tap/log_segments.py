"""The files of the tap's log, for readers: streams, segments, and the end that a segment's seal states.

A log is a tap directory, or a node's folder in an object store, given as a URL (``store``). There all segments are sealed.

Sealing renames a segment, so a path may be out of date when it is opened; the other name is tried then.
"""

import dataclasses
import itertools
import os
import stat
from collections.abc import Mapping
from typing import Final

from framegate.proxy.tap import record
from framegate.proxy.tap.headers import Seal, decode_seal, decode_segment_header
from framegate.proxy.tap.store import COPIES, is_url, store_at

START: Final = 0
LISTINGS: Final = 3
CLOCKS_NS: Final = 3600 * 10**9
"""Clocks of a node, a reader and a store differ by less than this, and a clock is set back by less."""


class LogError(Exception):
    """The log does not have what was requested. ``stream``: its name."""

    def __init__(self, stream: str, message: str) -> None:
        super().__init__(f"{stream}: {message}")
        self.stream = stream


class OffsetVanishedError(LogError):
    """The blocks at ``offset`` were deleted; ``available`` is the next offset that exists, None when none does."""

    def __init__(self, stream: str, offset: int, available: int | None) -> None:
        rest = "nothing is left" if available is None else f"the log begins again at {available}"
        super().__init__(stream, f"offset {offset} is gone: {rest}")
        self.offset = offset
        self.available = available


class DamagedBlockError(LogError):
    """The block at ``offset`` has a wrong CRC, or is absent although its segment's seal includes it. ``available`` is where the next segment begins,
    None when there is none; ``detail`` says what was found.
    """

    def __init__(self, stream: str, offset: int, available: int | None, detail: str) -> None:
        super().__init__(stream, f"block at {offset} is damaged: {detail}")
        self.offset = offset
        self.available = available
        self.detail = detail


class UnknownVersionError(LogError):
    """A later framegate wrote this."""


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """One file of a stream."""

    stream: str  # the folder's name
    path: str  # as listed; ``open_segment`` finds the file after a rename
    base: int  # the logical offset of its first block
    sealed: bool  # it will not grow
    size: int  # bytes of the file when listed, header included
    modified_ns: int  # of the last write, wall clock

    @property
    def limit(self) -> int:
        """The logical offset of the end of the file; its blocks end here or before."""
        return self.base + max(0, self.size - record.SEGMENT_HEADER_BYTES)


def streams(root: str) -> list[str]:
    """Names of the streams in a log, sorted; none when it does not exist. Other folders are left out."""
    if is_url(root):
        return [name for name in store_at(root).folders() if record.is_stream_name(name)]
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if record.is_stream_name(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []


def segments(root: str, stream: str, known: Mapping[int, Segment] | None = None) -> list[Segment]:
    """The segments of a stream in order; none when it does not exist. A file that is renamed during a listing may be missing from it, so a listing
    with a hole is repeated. ``known``: sealed segments of an earlier listing, by base. Those that still exist are not examined again.
    """
    if is_url(root):
        return stored_segments(root, stream)
    found: list[Segment] = []
    for _ in range(LISTINGS):
        found = _list(root, stream, known or {})
        if all(left.limit >= right.base for left, right in itertools.pairwise(found)):
            break
    return found


def stored_segments(root: str, stream: str, offset: int = START) -> list[Segment]:
    """``segments`` of a log in a store, those that begin at an offset or later: one request for 1,000."""
    found: list[Segment] = []
    for name, size, modified_ns in store_at(root).items(stream, record.segment_file(offset - 1, sealed=True) if offset else ""):
        stem, suffix = os.path.splitext(name)
        if suffix == record.SEALED_SUFFIX and record.is_segment_stem(stem):
            found.append(Segment(stream, f"{root.rstrip('/')}/{stream}/{name}", int(stem), True, size, modified_ns))
    return found


def _list(root: str, stream: str, known: Mapping[int, Segment]) -> list[Segment]:
    found: dict[int, Segment] = {}
    try:
        names = os.listdir(os.path.join(root, stream))
    except FileNotFoundError:
        return []
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix in (record.OPEN_SUFFIX, record.SEALED_SUFFIX) and record.is_segment_stem(stem):
            segment = known.get(int(stem)) if suffix == record.SEALED_SUFFIX else None
            segment = segment or _stat(root, stream, stem, suffix)
            if segment is not None and (segment.base not in found or segment.size > found[segment.base].size):
                found[segment.base] = segment
    return [found[base] for base in sorted(found)]


def _stat(root: str, stream: str, stem: str, suffix: str) -> Segment | None:
    """One segment, which may have been sealed since it was listed; None when it was deleted."""
    for sealed in (suffix == record.SEALED_SUFFIX, True):
        path = os.path.join(root, stream, stem + (record.SEALED_SUFFIX if sealed else record.OPEN_SUFFIX))
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode):
            return None
        return Segment(stream, path, int(stem), sealed, status.st_size, status.st_mtime_ns)
    return None


def again(segment: Segment) -> Segment:
    """An open segment as it is now; the same object when nothing has changed, or it exists under neither name."""
    stem, suffix = os.path.splitext(os.path.basename(segment.path))
    now = _stat(os.path.dirname(os.path.dirname(segment.path)), segment.stream, stem, suffix)
    return segment if now is None or now == segment else now


def open_segment(path: str) -> int:
    """A descriptor for reading, also when the segment was sealed since it was listed. Raises FileNotFoundError: it was deleted."""
    if is_url(path):
        return COPIES.open(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.endswith(record.OPEN_SUFFIX):
            raise
        return os.open(path.removesuffix(record.OPEN_SUFFIX) + record.SEALED_SUFFIX, os.O_RDONLY | os.O_CLOEXEC)


def first_offset(root: str, stream: str) -> int:
    """The offset of the stream's oldest block; 0 for a stream without segments."""
    listed = segments(root, stream)
    return listed[0].base if listed else START


def next_base(root: str, stream: str, offset: int) -> int | None:
    """The base of the next existing segment behind an offset; None when there is none."""
    return next((segment.base for segment in segments(root, stream) if segment.base > offset), None)


def segment_seal(segment: Segment) -> Seal | None:
    """The seal of a segment; None: it is being written, or of a version without seals. Raises as ``walk_segment``."""
    try:
        fd = open_segment(segment.path)
    except FileNotFoundError:
        raise OffsetVanishedError(segment.stream, segment.base, None) from None
    try:
        return seal_at(fd, segment, None)
    finally:
        os.close(fd)


def seal_at(fd: int, segment: Segment, following: int | None) -> Seal | None:
    """The seal in the header of an open segment; checks the header. Raises DamagedBlockError: the header or the seal is damaged, or a sealed segment
    has no seal; UnknownVersionError: a later framegate wrote it.
    """
    head = os.pread(fd, record.SEGMENT_HEADER_BYTES, 0)
    if len(head) < record.SEGMENT_HEADER_BYTES and not segment.sealed:
        return None  # its writer has just created it
    try:
        header = decode_segment_header(head)
        seal = decode_seal(head) if segment.sealed else _seal_begun(head)
        check_place(header, segment.stream, segment.base)
        if seal is None and segment.sealed and int(header["version"]) >= record.SEALED_SINCE:
            raise record.FormatError("sealed without a seal")
    except record.VersionError as error:
        raise UnknownVersionError(segment.stream, f"{os.path.basename(segment.path)}: {error}") from error
    except record.FormatError as error:
        raise DamagedBlockError(segment.stream, segment.base, following, f"{os.path.basename(segment.path)}: {error}") from error
    return seal


def check_place(header: Mapping[str, str | int], stream: str, base: int) -> None:
    """Check that a segment lies where its header says. Raises FormatError: it is of another stream, or begins elsewhere."""
    if header.get("stream", stream) != stream:
        raise record.FormatError(f"a segment of another stream, {header['stream']}")
    if header["base"] != base:
        raise record.FormatError(f"a segment that says it begins at {header['base']}")


def _seal_begun(head: bytes) -> Seal | None:
    """The seal of a segment that was not renamed yet, when it is complete."""
    try:
        return decode_seal(head)
    except record.FormatError:
        return None
