"""What is watched: groups of files that belong to somebody, and who takes what is new in them.

A *source* is one owner's files of one kind: they are read, judged and taken together. Its *taker* decides whether what is new is good, and puts it in
the place of what was, wherever that is; until it has, and when it refuses, the old goes on. Whoever needs another kind of file watched (users, keys
that tokens are signed with, passwords) makes a taker, or uses ``Reload``, and registers a source with ``Rotation.watch``.
"""

import abc
import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from control.files import MAX_BYTES, Contents
from proxy.cells import FILE_KINDS

__all__ = ["Refusal", "RefusedError", "Reload", "Source", "Taker"]


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why something new is not taken. ``file``: its path, empty when it is about no single one; ``reason``: in words, without anything secret."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file} {self.reason}" if self.file else self.reason


class RefusedError(Exception):
    """Something new is not taken."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file} {reason}")
        self.refusal: Final = Refusal(file, reason)


class Taker(abc.ABC):
    """Takes what is new. One at a time is asked, on the event loop. Each of its sources is of an owner of its own."""

    @abc.abstractmethod
    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        """Take what is in the files of some sources, by owner.

        Returns:
            Why, by owner, of those whose new contents are not taken; the others' are in force.

        Raises:
            Exception: it could not be found out; nothing is taken, and it is asked again later.
        """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files that belong together.

    Attributes:
        owner: whose they are, as in ``listener/NAME``.
        kind: one of ``proxy.cells.FILE_KINDS``.
        paths: absolute.
        taker: of what is new.
        in_force: the ``digest`` of what was, when the source was made.
        max_bytes: of all files together; more is refused.
    """

    owner: str
    kind: str
    paths: tuple[str, ...]
    taker: Taker
    in_force: bytes = dataclasses.field(repr=False)
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        assert self.kind in FILE_KINDS, f"{self.kind} is no kind of file"


class Reload(Taker):
    """A taker of sources of which each has an object that is made of its contents, and replaced as a whole.

    Args:
        load: makes the object of what is in the files of an owner and puts it in place, in a thread; a ``RefusedError`` says why it cannot.
    """

    def __init__(self, load: Callable[[str, Contents], None]) -> None:
        self._load: Final = load

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        """See ``Taker``."""
        refused = {}
        for owner, contents in found.items():
            try:
                await asyncio.to_thread(self._load, owner, contents)
            except RefusedError as error:
                refused[owner] = error.refusal
        return refused
