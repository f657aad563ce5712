"""Watched files: sources, and the interface of reloaders.

A *source* is the files of one owner and kind: they are read, checked and put in force together. Its *reloader* checks new contents and puts them in
force; until then, and after a refusal, the old ones stay. For another kind of file, implement a reloader, and register a source with
``Rotation.watch``.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from framegate.control.files import MAX_BYTES, Contents
from framegate.proxy.cells import FILE_KINDS


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why new contents are refused. ``file``: its path, or empty; ``reason``: text without secrets."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file} {self.reason}" if self.file else self.reason


class RefusedError(Exception):
    """New contents are refused."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file} {reason}")
        self.refusal: Final = Refusal(file, reason)


class Reloader(abc.ABC):
    """Puts new contents in force. Called on the event loop, one at a time. Each of its sources has another owner."""

    @abc.abstractmethod
    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        """Put the contents of some sources in force, by owner. Returns the refusals, by owner; the contents of other owners are in force. Raises
        Exception: the check failed; nothing is changed, and it is tried again later.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files that belong together."""

    owner: str  # the owner, as in ``listener/NAME``
    kind: str  # one of ``framegate.proxy.cells.FILE_KINDS``
    paths: tuple[str, ...]  # absolute
    reloader: Reloader  # of new contents
    in_force: bytes = dataclasses.field(repr=False)  # the ``digest`` of the contents when the source was made
    max_bytes: int = MAX_BYTES  # of all files together; more is refused
    automatic: Callable[[], bool] = lambda: True  # whether a change is passed to the reloader; otherwise it is only noted (``Rotation.changed``)

    def __post_init__(self) -> None:
        assert self.kind in FILE_KINDS, f"{self.kind} is no kind of file"
