"""Who reads the log, and how far each has come: one small file for each registered consumer, which retention heeds.

A consumer says from where it will read after a restart. A file that is older than the truth keeps more than is needed, never less; so does
one that cannot be read (``retention``).
"""

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from typing import Final, NamedTuple

from proxy.tap.record import CONSUMERS_FOLDER, FILE_MODE, FOLDER_MODE, FormatError

__all__ = ["Consumers", "read_consumers", "write_consumer"]

CONSUMER_VERSION: Final = 1
MAX_BYTES: Final = 4 << 20
"""Of a file that is read: some 50,000 streams."""


class Consumers(NamedTuple):
    """What the files of the registered consumers say.

    Attributes:
        offsets: of each consumer, by stream.
        unreadable: why a consumer's file cannot be believed, by its name; by ``CONSUMERS_FOLDER`` when the folder cannot be listed, so that who is
            registered is not known.
    """

    offsets: dict[str, dict[str, int]]
    unreadable: dict[str, str]


def write_consumer(root: str, name: str, offsets: Mapping[str, int], now_ns: int) -> None:
    """Register a consumer, or say how far it has come: retention then deletes first what no consumer needs.

    The file is replaced at once or not at all, whatever stops us and the machine.

    Args:
        root: the tap directory.
        name: of the consumer; becomes a file name.
        offsets: for each stream the offset from which the consumer will read after a restart.
        now_ns: wall clock.

    Raises:
        ValueError: a name that is not a plain file name.
        OSError: the file stays as it was.
    """
    if not name or name != os.path.basename(name) or name.startswith("."):
        raise ValueError(f"not a consumer name: {name!r}")
    folder = os.path.join(root, CONSUMERS_FOLDER)
    os.makedirs(folder, FOLDER_MODE, exist_ok=True)
    path = os.path.join(folder, name + ".json")
    text = json.dumps({"version": CONSUMER_VERSION, "updated_ns": now_ns, "streams": dict(offsets)}, sort_keys=True)
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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def read_consumers(root: str) -> Consumers:
    """Every registered consumer. Never raises: who cannot be read is named, and may need everything."""
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
