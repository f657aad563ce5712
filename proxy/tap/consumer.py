"""Registered consumers of the log and their offsets: one small file each. Retention respects them.

A consumer says from where it will read after a restart. A file that is older than the truth keeps more than is needed, never less; so does
one that cannot be read (``retention``).

A name is one reader's. Who reads under it holds ``<name>.lock`` meanwhile (``claim_consumer``), and the file says who that is, as ``owner``: two
that share a name would each tell retention that what the other needs may go.
"""

import bisect
import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from framegate.proxy.tap.log_reader import START, LogError, Segment, walk_segment
from framegate.proxy.tap.record import CONSUMERS_FOLDER, FILE_MODE, FOLDER_MODE, FormatError

__all__ = [
    "MAX_NAMED",
    "OTHERS",
    "ConsumerInUseError",
    "Consumers",
    "Lag",
    "Lags",
    "claim_consumer",
    "consumer_in_use",
    "consumer_owner",
    "read_consumers",
    "remove_consumer",
    "write_consumer",
]

CONSUMER_VERSION: Final = 1
MAX_BYTES: Final = 4 << 20
"""Of a file that is read: some 50,000 streams."""
MAX_NAMED: Final = 50
"""Most consumers that ``Lags.measure`` names; those beyond, in order of their names, are one entry, ``OTHERS``."""
OTHERS: Final = "others"
_MAX_NAME: Final = 128


class ConsumerInUseError(RuntimeError):
    """Another process uses this name. The message names it, as far as is known."""


class Consumers(NamedTuple):
    """What the files of the registered consumers say.

    Attributes:
        offsets: of each consumer, by stream.
        unreadable: why a consumer's file cannot be believed, by its name; by ``CONSUMERS_FOLDER`` when the folder cannot be listed, so that who is
            registered is not known.
    """

    offsets: dict[str, dict[str, int]]
    unreadable: dict[str, str]


def write_consumer(root: str, name: str, offsets: Mapping[str, int], now_ns: int, owner: str = "") -> None:
    """Register a consumer, or say how far it has come: retention then deletes first what no consumer needs.

    The file is replaced at once or not at all, whatever stops us and the machine.

    Args:
        root: the tap directory.
        name: of the consumer; becomes a file name.
        offsets: for each stream the offset from which the consumer will read after a restart.
        now_ns: wall clock.
        owner: what tells this consumer from another of its name, as a job's checkpoint does; "" tells nothing.

    Raises:
        ValueError: a name that is not a plain file name.
        OSError: the file stays as it was.
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
            os.fsync(file.fileno())  # else a power loss may keep the new name and not the text
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _path(root: str, name: str, suffix: str = ".json") -> str:
    """Of a consumer's file.

    Raises:
        ValueError: a name that is not a plain file name.
    """
    if not name or name != os.path.basename(name) or name.startswith("."):
        raise ValueError(f"not a consumer name: {name!r}")
    return os.path.join(root, CONSUMERS_FOLDER, name + suffix)


def remove_consumer(root: str, name: str) -> None:
    """Forget a consumer: retention heeds it no more. One that is at work must not be removed; it would only come back.

    Raises:
        ValueError: a name that is not a plain file name.
        FileNotFoundError: nobody is registered under it.
        ConsumerInUseError: it is at work.
        OSError: its file cannot be removed.
    """
    path = _path(root, name)
    os.stat(path)
    with claim_consumer(root, name):
        os.unlink(path)
        os.unlink(_path(root, name, ".lock"))


@contextlib.contextmanager
def claim_consumer(root: str, name: str, owner: str = "") -> Iterator[None]:
    """Be the only one of this name, as long as the block goes on and this process lives.

    Args:
        root: the tap directory.
        name: of the consumer.
        owner: as for ``write_consumer``; with "" only those that are at work are heeded.

    Raises:
        ValueError: a name that is not a plain file name.
        ConsumerInUseError: another process is at work under it, or the name was registered by another owner.
        OSError: the folder cannot be written to.
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
    """A descriptor that holds the lock; -1: another one does. A file that is removed while we wait at its door is no lock."""
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
    """Whether a process is at work under this name now.

    Raises:
        ValueError: a name that is not a plain file name.
        OSError: its lock cannot be looked at.
    """
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
    """The owner of a consumer; "" when there is none, or its file is not valid.

    Raises:
        ValueError: a name that is not a plain file name.
    """
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
    """Every registered consumer. Never raises: unreadable ones are named, and may need everything."""
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
            continue  # unregistered since it was listed
        except (OSError, ValueError, RecursionError) as error:
            found.unreadable[consumer] = f"{name}: {error}"
    return found


def _content(path: str) -> bytes:
    """What is in a regular file of a sane size. Nothing else is waited for, or read: the folder is writable for others than us."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError("not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FormatError(f"larger than {MAX_BYTES >> 20} MiB")
    return content


def _consumer_offsets(record: object) -> dict[str, int]:
    """The offsets in a consumer's file.

    Raises:
        FormatError: ``write_consumer`` did not write this, or a later version did.
    """
    if not isinstance(record, dict) or record.get("version") != CONSUMER_VERSION:
        raise FormatError(f"not a consumer file of version {CONSUMER_VERSION}")
    streams = record.get("streams")
    if not isinstance(streams, dict) or any(type(offset) is not int or offset < 0 for offset in streams.values()):
        raise FormatError("offsets that are none")
    return streams


class Lag(NamedTuple):
    """Of one consumer. ``unread``: bytes of the log; ``since_ns``: when the oldest frame of them was captured, wall clock; 0: there is none."""

    unread: int
    since_ns: int


class Lags:
    """Measures. Blocks on the file system: of what a consumer has yet to read in a stream, the header of one block, and that once as long as neither
    moves.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], int] = {}

    def measure(self, listed: Mapping[str, Sequence[Segment]], consumers: Mapping[str, Mapping[str, int]]) -> dict[str, Lag]:
        """The lag of each consumer, by its name as a text that can be shown.

        Args:
            listed: the segments that are there, in order, by stream.
            consumers: where each stands in each stream; one that a consumer does not know it has yet to read.
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
    """When the first frame of the block at an offset was captured; of what cannot be read, when its file was written last; 0: the block comes yet."""
    try:
        for ref in walk_segment(segment, offset):
            return ref.header.first_ns or segment.modified_ns
    except (OSError, LogError):
        return segment.modified_ns
    return 0
