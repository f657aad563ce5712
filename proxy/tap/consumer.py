"""Registered consumers of the log: their offsets, one small file each, and how far each is behind. Retention respects the offsets.

A consumer's file has the offsets from which it will read after a restart. A file that is out of date, or cannot be read, makes retention keep more
than is needed, never less.

Only one process uses a name at a time: it holds ``<name>.lock`` (``claim_consumer``), and the file names it as ``owner``. Otherwise each of two
readers would tell retention that the data of the other may be deleted.
"""

import bisect
import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from framegate.proxy.tap.log_reader import START, LogError, Segment, walk_segment
from framegate.proxy.tap.record import CONSUMERS_FOLDER, FILE_MODE, FOLDER_MODE, FormatError

CONSUMER_VERSION: Final = 1
MAX_BYTES: Final = 4 << 20  # Largest file that is read: some 50,000 streams
MAX_NAMED: Final = 50
"""Most consumers that ``Lags.measure`` names. Those beyond, in order of names, are one entry, ``OTHERS``: bytes summed, the oldest time."""
OTHERS: Final = "others"
_MAX_NAME: Final = 128


class ConsumerInUseError(RuntimeError):
    """Another process uses this name. The message names it when it is known."""


class Consumers(NamedTuple):
    """The contents of the consumers' files."""

    offsets: dict[str, dict[str, int]]  # of each consumer, by stream
    unreadable: dict[str, str]  # why a consumer's file is not valid, by name; by ``CONSUMERS_FOLDER`` when the folder cannot be listed


def write_consumer(root: str, name: str, offsets: Mapping[str, int], now_ns: int, owner: str = "") -> None:
    """Register a consumer, or store its progress. The file is replaced as a whole, or not at all; on a full disk a registered consumer's file is
    written in place, because its progress lets retention make room.

    ``offsets``: for each stream the offset from which the consumer will read after a restart. ``owner``: distinguishes this consumer from others of
    the same name, for example a job's checkpoint; "" does not.

    Raises ValueError: the name is not a plain file name; OSError: the file is unchanged.
    """
    path = _path(root, name)
    os.makedirs(os.path.dirname(path), FOLDER_MODE, exist_ok=True)
    record = {"version": CONSUMER_VERSION, "updated_ns": now_ns, "streams": dict(offsets), **({"owner": owner} if owner else {})}
    text = json.dumps(record, sort_keys=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power loss may leave the new name without the content
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwritten(path, text.encode()):
            raise


def prepare_consumer(root: str, name: str, now_ns: int) -> None:
    """Register a consumer that has read nothing, unless it is registered or runs. Call it before frames are written: on a full disk there is no room
    for a new file. Raises as ``write_consumer``.
    """
    with contextlib.suppress(ConsumerInUseError), claim_consumer(root, name):
        if not os.path.lexists(_path(root, name)):
            write_consumer(root, name, {}, now_ns)


def _overwritten(path: str, text: bytes) -> bool:
    """Write a file in place; False: it does not exist, or there is no room even so."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        text = text.ljust(os.fstat(fd).st_size)
        return os.pwrite(fd, text, 0) == len(text)
    except OSError:
        return False
    finally:
        os.close(fd)


def _path(root: str, name: str, suffix: str = ".json") -> str:
    """A consumer's file. Raises ValueError when the name is not a plain file name."""
    if not name or name != os.path.basename(name) or name.startswith("."):
        raise ValueError(f"not a consumer name: {name!r}")
    return os.path.join(root, CONSUMERS_FOLDER, name + suffix)


def remove_consumer(root: str, name: str) -> None:
    """Remove a consumer: retention no longer keeps data for it. A running consumer is not removed; it would register again.

    Raises:
        ValueError: the name is not a plain file name.
        FileNotFoundError: there is no such consumer.
        ConsumerInUseError: it is running.
        OSError: its file cannot be removed.
    """
    path = _path(root, name)
    os.stat(path)
    with claim_consumer(root, name):
        os.unlink(path)
        os.unlink(_path(root, name, ".lock"))


@contextlib.contextmanager
def claim_consumer(root: str, name: str, owner: str = "") -> Iterator[None]:
    """Hold a name for the duration of a ``with`` block, at most until this process ends. ``owner``: as for ``write_consumer``; with "" only running
    consumers are a conflict. Raises ValueError: the name is not a plain file name; ConsumerInUseError: another process uses the name, or another
    owner registered it; OSError: the folder cannot be written.
    """
    path = _path(root, name, ".lock")
    os.makedirs(os.path.dirname(path), FOLDER_MODE, exist_ok=True)
    fd = _locked(path)
    if fd < 0:
        raise ConsumerInUseError(f"another process reads under the name {name}")
    try:
        registered = consumer_owner(root, name)
        if owner and registered and registered != owner:
            raise ConsumerInUseError(f"the name {name} is in use by {registered}")
        yield
    finally:
        os.close(fd)


def _locked(path: str) -> int:
    """A descriptor that holds the lock; -1: another process holds it. A lock file that was deleted before it was locked is created again."""
    while True:
        fd = _private(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd
        except BlockingIOError:
            os.close(fd)
            return -1
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def consumer_in_use(root: str, name: str) -> bool:
    """Whether a process uses this name now. Raises ValueError: the name is not a plain file name; OSError: the lock cannot be examined."""
    try:
        fd = os.open(_path(root, name, ".lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def consumer_owner(root: str, name: str) -> str:
    """The owner of a consumer; "" when there is none, or its file is not valid. Raises ValueError like ``write_consumer``."""
    path = _path(root, name)
    try:
        record = json.loads(_content(path))
    except (OSError, ValueError, RecursionError):
        return ""
    owner = record.get("owner", "") if isinstance(record, dict) else ""
    return owner if isinstance(owner, str) else ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def read_consumers(root: str) -> Consumers:
    """Every registered consumer. Never raises; consumers whose files are not valid are named, and may need all data."""
    folder = os.path.join(root, CONSUMERS_FOLDER)
    found = Consumers({}, {})
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except FileNotFoundError:
        return found
    except OSError as error:
        return Consumers({}, {CONSUMERS_FOLDER: str(error)})
    for name in names:
        consumer = name.removesuffix(".json")
        try:
            found.offsets[consumer] = _consumer_offsets(json.loads(_content(os.path.join(folder, name))))
        except FileNotFoundError:
            continue  # removed since it was listed
        except (OSError, ValueError, RecursionError) as error:
            found.unreadable[consumer] = f"{name}: {error}"
    return found


def _content(path: str) -> bytes:
    """The content of a regular file of limited size. Nothing else is read or waited for: other users can write to the folder."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError("not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FormatError(f"larger than {MAX_BYTES >> 20} MiB")
    return content


def _consumer_offsets(record: object) -> dict[str, int]:
    """The offsets in a consumer's file. Raises FormatError when the file is not valid, or of a later version."""
    if not isinstance(record, dict) or record.get("version") != CONSUMER_VERSION:
        raise FormatError(f"not a consumer file of version {CONSUMER_VERSION}")
    streams = record.get("streams")
    if not isinstance(streams, dict) or any(type(offset) is not int or offset < 0 for offset in streams.values()):
        raise FormatError("offsets that are none")
    return streams


class Lag(NamedTuple):
    """How far one consumer is behind: bytes of the log that it has not read, and when the oldest frame in them was captured, wall clock; 0: there is
    none.
    """

    unread: int
    since_ns: int


class Lags:
    """Measures how far consumers are behind. Blocks on the file system: reads one block header for each consumer and stream, and only once while
    neither changes.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], int] = {}

    def measure(self, listed: Mapping[str, Sequence[Segment]], consumers: Mapping[str, Mapping[str, int]]) -> dict[str, Lag]:
        """The lag of each consumer, by its name as printable text. ``listed``: the existing segments in order, by stream. ``consumers``: the offsets
        of each, by stream; a stream without an offset is unread.
        """
        found: dict[str, Lag] = {}
        times: dict[tuple[str, int], int] = {}
        for number, name in enumerate(sorted(consumers)):
            lag = self._lag(listed, consumers[name], times)
            shown = OTHERS if number >= MAX_NAMED else name.encode(errors="replace").decode()[:_MAX_NAME]
            before = found.get(shown, Lag(0, 0))
            found[shown] = Lag(before.unread + lag.unread, _older(before.since_ns, lag.since_ns))
        self._times = times
        return found

    def _lag(self, listed: Mapping[str, Sequence[Segment]], offsets: Mapping[str, int], times: dict[tuple[str, int], int]) -> Lag:
        unread, since_ns = 0, 0
        for stream, segments in listed.items():
            offset = offsets.get(stream, START)
            ahead = segments[bisect.bisect_right(segments, offset, key=lambda segment: segment.limit) :]
            if not ahead:
                continue
            unread += sum(segment.limit - max(segment.base, offset) for segment in ahead)
            key = (stream, max(ahead[0].base, offset))
            if key not in times:
                times[key] = self._times.get(key) or _captured(ahead[0], key[1])
            since_ns = _older(since_ns, times[key])
        return Lag(unread, since_ns)


def _older(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def _captured(segment: Segment, offset: int) -> int:
    """When the first frame of the block at an offset was captured; when that cannot be read, the time of the last write to the file; 0: the block is
    not there yet.
    """
    try:
        for ref in walk_segment(segment, offset):
            return ref.header.first_ns or segment.modified_ns
    except (OSError, LogError):
        return segment.modified_ns
    return 0
