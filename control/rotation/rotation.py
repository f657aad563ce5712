"""Polls files that may be replaced, passes new contents to their reloader, and reports the result.

Each source goes through these states independently::

    in force ──other content──► seen ──two looks found the same──► asked ──taken──► in force
                                 ▲ │                                │
                                 └─┴──other content──── refused ◄───┘   told once it is so for ``grace``; asked again each ``RETRY_S``

A missing file is refused without asking the reloader. The contents in force stay in force. A reload by command
takes the same steps without waiting: new contents are passed to the reloader, and refusals are reported, at once.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Final

from framegate.control.events import Bus, Row
from framegate.control.files import Contents, FileError, Stamp, digest, is_fresh, read, stamp
from framegate.control.meters import Meters
from framegate.control.rotation.source import Refusal, Reloader, Source
from framegate.control.status import ReloadOutcome, ReloadResult
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import RotationConfig

RETRY_S: Final = 30.0
"""Interval of further tries after a refusal while the files are unchanged: a certificate may become valid, or a busy processor respond."""
_STANDS_S: Final = 300.0
"""A look may wait for a reload, and both for a child process and for processors, as long as ``control.fleet.two_phases`` does."""
_TRIES: Final = 3  # While files are being replaced

Found = bytes | FileError  # the digest of contents, or why they cannot be read


def _found(source: Source) -> tuple[Found | None, Contents]:
    """What is in a source's files; None when they are being replaced."""
    contents = read(source.paths, source.max_bytes)
    if contents is None or isinstance(contents, FileError):
        return contents, {}
    return digest(contents), contents


@dataclasses.dataclass(slots=True)
class _Watched:
    """The state of one source."""

    source: Source
    in_force: bytes = dataclasses.field(repr=False)  # digest of the contents in force
    loaded_ns: int
    # other contents that were found, or None. ``since_s``: when they were found first; ``settled``: a second look found the same.
    seen: Found | None = dataclasses.field(default=None, repr=False)
    since_s: float = 0.0
    settled: bool = False
    # why ``seen`` is not in force; None: the reloader was not asked. ``asked_s``: when it was asked last; ``told``: the refusal was reported.
    refusal: Refusal | None = None
    asked_s: float = 0.0
    told: bool = False
    # stamp, fresh: of the files at the last look at the contents
    stamp: Stamp | None = None
    fresh: bool = True

    async def look(self, now_s: float) -> None:
        """Read the files, unless they cannot have changed since the last look."""
        found_stamp = await asyncio.to_thread(stamp, self.source.paths)  # a file system of the network may take its time
        if found_stamp == self.stamp and not self.fresh:
            self.settled = True
            return
        now_ns = time.time_ns()
        for _ in range(_TRIES):
            found, _contents = await asyncio.to_thread(_found, self.source)
            if found is not None:
                break
        else:
            return
        self.stamp, self.fresh = found_stamp, is_fresh(found_stamp, now_ns)
        if found == self.in_force:
            self.seen = self.refusal = None
        elif found != self.seen:
            self.seen, self.since_s, self.settled, self.refusal, self.told = found, now_s, False, None, False
        else:
            self.settled = True

    def is_due(self, now_s: float) -> bool:
        """Whether the reloader is to be asked about what was found."""
        waits = self.refusal is not None and now_s - self.asked_s < RETRY_S
        return self.seen is not None and self.settled and not waits and self.source.automatic()


class Rotation:
    """All sources of one control process. Event loop only. ``settings``: the interval of looks, and how long a refusal lasts before it is reported.
    ``clock``: seconds that only grow.
    """

    def __init__(
        self, settings: RotationConfig, events: Bus, meters: Meters, task_monitor: TaskMonitor, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.configure(settings)
        self._events = events
        self._meters = meters
        self._task_monitor = task_monitor
        self._clock = clock
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._reloads: set[asyncio.Task[list[ReloadOutcome]]] = set()

    def watch(self, source: Source) -> None:
        """Watch it from now on; one of the same owner and kind is watched no more. Its contents are those in force, whatever the files hold now."""
        self._watched[source.owner, source.kind] = _Watched(source, source.in_force, time.time_ns())
        for result in ("", "refused"):
            self._meters.add("reload.count", source.kind, result, amount=0)

    def forget(self, owner: str, kind: str) -> None:
        """Watch a source no more. Harmless when it is not watched."""
        self._watched.pop((owner, kind), None)

    def configure(self, settings: RotationConfig) -> None:
        """Set the interval of looks, and how long a refusal lasts before it is reported."""
        self._poll_s, self._grace_s = settings.poll_ms / 1000, settings.grace_ms / 1000

    def start(self) -> None:
        job = self._task_monitor.job("rotation", _STANDS_S + self._poll_s)
        self._task = asyncio.create_task(job.keep_going(self._tick))

    def close(self) -> None:
        """Stop polling. A change in progress is still completed or refused."""
        if self._task is not None:
            self._task.cancel()

    async def _tick(self) -> None:
        await asyncio.sleep(self._poll_s)
        await self.look()

    async def look(self) -> None:
        """Look at all files once, and reload those that changed."""
        async with self._lock:
            now_s = self._clock()
            items = list(self._watched.values())
            await self._see(items, now_s)
            await self._ask([item for item in items if item.is_due(now_s)], now_s)
            self._report(items, self._clock())

    async def reload(self, path: str | None = None) -> list[ReloadOutcome]:
        """Reload the present contents of the files, without waiting, but not those that are only noted (``Source.automatic``). Returns the outcome of
        each source, in order of owner and kind. A caller that is canceled does not end the reload. ``path``: reload only the sources with this file;
        None: all.
        """
        task = asyncio.create_task(self._reload(path))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)
        return await asyncio.shield(task)

    async def _reload(self, path: str | None) -> list[ReloadOutcome]:
        async with self._lock:
            now_s = self._clock()
            items = sorted(
                (key, item) for key, item in self._watched.items() if item.source.automatic() and (path is None or path in item.source.paths)
            )
            chosen = [item for _, item in items]
            before = {key: item.loaded_ns for key, item in items}
            for _, item in items:
                item.stamp = None
            for _ in range(_TRIES):
                await self._see(chosen, now_s)
                await self._ask([item for item in chosen if item.seen is not None], now_s)
                if all(item.seen is None or item.refusal is not None for item in chosen):
                    break  # else one was replaced between the look and the question
            self._report(chosen, now_s + self._grace_s)
            return [_outcome(item, is_new=item.loaded_ns != before[key]) for key, item in items]

    async def _see(self, items: list[_Watched], now_s: float) -> None:
        for item in items:
            await item.look(now_s)
            if item.told and item.seen is None:
                self._restored(item)

    def refusal(self, owner: str, kind: str) -> Refusal | None:
        """Why what lies in the files of a source is not in force, once that is a failure."""
        item = self._watched.get((owner, kind))
        return item.refusal if item is not None and item.told else None

    def changed(self, owner: str, kind: str) -> bool:
        """Whether the files of a source hold other contents than those in force."""
        item = self._watched.get((owner, kind))
        return item is not None and item.seen is not None and item.settled

    def loaded_ns(self, owner: str, kind: str) -> int:
        """When what is in force was taken, since 1970; 0 of what is not watched."""
        item = self._watched.get((owner, kind))
        return 0 if item is None else item.loaded_ns

    async def _ask(self, due: list[_Watched], now_s: float) -> None:
        for item in due:
            item.asked_s = now_s
            if isinstance(item.seen, FileError):
                item.refusal = Refusal(item.seen.path, item.seen.reason)
        readable = [item for item in due if item.seen is not None and not isinstance(item.seen, FileError)]
        for reloader in dict.fromkeys(item.source.reloader for item in readable):
            await self._have_taken(reloader, [item for item in readable if item.source.reloader is reloader])

    async def _have_taken(self, reloader: Reloader, items: list[_Watched]) -> None:
        seen: dict[str, _Watched] = {}
        found: dict[str, Contents] = {}
        for item in items:
            known, contents = await asyncio.to_thread(_found, item.source)
            if known == item.seen:  # else it is another already, and seen at the next look
                seen[item.source.owner], found[item.source.owner] = item, contents
        if not found:
            return
        try:
            refused = await reloader.take(found)
        except Exception as error:
            self._task_monitor.failed("rotation", error)
            reason = f"could not be judged: {type(error).__name__}"
            refused = {owner: Refusal("", reason) for owner in seen}
        for owner, item in seen.items():
            if self._watched.get((owner, item.source.kind)) is not item:
                continue  # its owner was removed, or has other files, meanwhile
            if owner in refused:
                item.refusal = refused[owner]
            else:
                self._reload_due(item)

    def _reload_due(self, item: _Watched) -> None:
        source = item.source
        assert isinstance(item.seen, bytes), "what cannot be read is given to nobody"
        took = self._reloaded(item)
        item.in_force, item.loaded_ns = item.seen, time.time_ns()
        item.seen, item.refusal, item.told = None, None, False
        self._meters.add("reload.count", source.kind, "")
        line: Row = {"owner": source.owner, "kind": source.kind, "files": list(source.paths)}
        self._events.publish({"event": "files_replaced", **line, **took}, line=line)

    def _reloaded(self, item: _Watched) -> Row:
        """How long ago what is seen was seen first, for who makes spans of events; the log's row does not have it."""
        return {"took_ns": max(0, round((self._clock() - item.since_s) * 1e9))}

    def _report(self, items: list[_Watched], now_s: float) -> None:
        """Report each refusal once, when it has lasted for the grace time."""
        for item in items:
            if item.refusal is None or item.told or now_s < item.since_s + self._grace_s:  # a reload adds the same number: no rounding differs
                continue
            item.told = True
            self._meters.add("reload.count", item.source.kind, "refused")
            line: Row = {"owner": item.source.owner, "kind": item.source.kind, "file": item.refusal.file, "reason": item.refusal.reason}
            self._events.publish({"event": "files_refused", **line, **self._reloaded(item)}, level="error", line=line)

    def _restored(self, item: _Watched) -> None:
        """Report that the files have the contents in force again."""
        item.told = False
        self._events.publish({"event": "files_restored", "owner": item.source.owner, "kind": item.source.kind})


def _outcome(item: _Watched, *, is_new: bool) -> ReloadOutcome:
    refusal = item.refusal or Refusal("", "")
    result: ReloadResult = "refused" if item.refusal is not None else "replaced" if is_new else "unchanged"
    return ReloadOutcome(owner=item.source.owner, kind=item.source.kind, result=result, file=refusal.file, reason=refusal.reason)
