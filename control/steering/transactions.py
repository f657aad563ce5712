"""Changes of the configuration in force: what was and what is, read inside the change; and changes that are completed or taken back even if their
call is cancelled (Ctrl-C, a deadline).

A transaction whose call is cancelled is taken back if it is not decided yet; otherwise it goes on to its end. The call waits for that and has
its result. The row ``change_settled`` says how a transaction ended whose call was cancelled.
"""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from framegate.control.errors import ControlError, EtagError, InvalidArgumentError, UnavailableError
from framegate.control.events import Bus, Row
from framegate.control.meters import Meters
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.server.messages import Change

if TYPE_CHECKING:
    from framegate.control.fleet.desired_state import DesiredState
    from framegate.control.fleet.supervisor import Supervisor

T = TypeVar("T")


class Changed(NamedTuple, Generic[T]):
    """A resource before and after a change, both read inside it."""

    before: T
    after: T


class Part(NamedTuple, Generic[T]):
    """A resource that is a part of the configuration."""

    # kind, name: for errors and rows
    kind: str
    name: str
    of: Callable[[ProxyConfig], T]  # the resource in a configuration; raises if it does not exist
    into: Callable[[ProxyConfig, T], ProxyConfig]  # the configuration with another value of the resource
    further: Change = Change()  # what a processor must have besides the configuration


def etag_of(value: Any, key: bytes = b"") -> str:
    """Identifies the contents of a resource: a model or JSON values. ``key``: of values that must not be guessed."""
    import hashlib  # here: it loads OpenSSL

    text = json.dumps(value, sort_keys=True, default=_fields)
    return hashlib.blake2b(text.encode(), digest_size=8, key=key).hexdigest()


def _fields(model: Any) -> dict[str, Any]:
    return {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}


def check_etag(kind: str, name: str, wanted: str, value: Any) -> None:
    """Raise EtagError if a caller has seen another value of a resource; an empty etag allows any."""
    if wanted and wanted != etag_of(value):
        raise EtagError(kind, name)


def replaced(model: T, changes: Mapping[str, Any]) -> T:
    """A model with other values of some fields; a mapping changes fields of the model in that field."""
    values = {name: replaced(getattr(model, name), value) if isinstance(value, Mapping) else value for name, value in changes.items()}
    return dataclasses.replace(model, **values)  # type: ignore[type-var]


class Transaction:
    """One change. Attributes: ``decided``: it will be completed, even if its call ends."""

    def __init__(self) -> None:
        self.decided = False

    def decide(self) -> None:
        """Complete it from here on, even if its call ends."""
        self.decided = True


class Transactions:
    """Runs each in a task of its own. Event loop only."""

    def __init__(self, events: Bus, meters: Meters) -> None:
        self._events = events
        self._meters = meters
        self._running: dict[asyncio.Task[Any], Transaction] = {}

    async def update(
        self,
        supervisor: "Supervisor",
        part: Part[T],
        edit: Callable[[T], T],
        etag: str = "",
        *,
        validate_only: bool = False,
        decided: Callable[[Changed[T]], None] = lambda changed: None,
        done: Callable[[Changed[T]], None] = lambda changed: None,
    ) -> Changed[T]:
        """Change a part of the configuration in every processor or in none, and return when it is in force.

        Args:
            edit: the new value for the present one; raises if the change is not allowed. It is called when earlier changes are done.
            etag: that of the resource that the caller has seen; empty: change any.
            validate_only: only check, and return the result; no processor is asked.
            decided: called when the change is in the desired state.
            done: called when it is in force, even if the call was cancelled.

        Raises NotFoundError: of ``part.of``. EtagError: the resource has changed. AbortedError: a processor refused; none has the change;
        UnavailableError: it is decided, but not confirmed everywhere.
        """
        found: list[Changed[T]] = []

        def edited(config: ProxyConfig) -> ProxyConfig:
            before = part.of(config)
            check_etag(part.kind, part.name, etag, before)
            found[:] = [Changed(before, edit(before))]
            return part.into(config, found[0].after)

        if validate_only:
            edited(supervisor.desired.config)
            return found[0]

        def commit(desired: "DesiredState") -> None:
            del desired
            decided(found[0])

        async def make(transaction: Transaction) -> Changed[T]:
            try:
                await supervisor.change_config(edited, decided=transaction.decide, further=lambda slot: part.further, commit=commit)
            except UnavailableError as error:
                error.changed = found[0] if transaction.decided else None
                raise
            done(found[0])
            return found[0]

        return await self.change(f"{part.kind} {part.name}", make)

    async def change(self, name: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """As ``run``, for a change of the configuration in force; it is counted by its result (``framegate.config.changes``)."""

        async def counted(transaction: Transaction) -> T:
            try:
                result = await work(transaction)
            except InvalidArgumentError:
                self._meters.add("config.changes", "invalid")
                raise
            except (ControlError, asyncio.CancelledError):
                self._meters.add("config.changes", "refused")
                raise
            self._meters.add("config.changes", "")
            return result

        return await self.run(name, counted)

    async def run(self, name: str, work: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` until it is completed or taken back, and return or raise its result. A second cancellation ends the call at once. ``work``:
        takes back what it did when it is cancelled, which happens at most once, and never after it called ``decide``.
        """
        transaction = Transaction()
        task = asyncio.create_task(work(transaction))
        self._running[task] = transaction
        task.add_done_callback(self._running.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                return task.result()
            task.add_done_callback(lambda done: self._settled(name, done))
            if not transaction.decided:
                task.cancel()
            return await asyncio.shield(task)

    def publish(self, row: Row) -> None:
        self._events.publish(row)

    def _settled(self, name: str, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        row: Row = {"event": "change_settled", "change": name, "result": "taken back" if task.cancelled() else "failed" if error else "made"}
        if error is not None:
            row["error"] = repr(error)
        level = "info" if error is None else "warning" if isinstance(error, ControlError) else "error"
        self._events.publish({**row, "reason": "its call had ended"}, level=level)

    def close(self) -> None:
        """Take back what is not decided."""
        for task, transaction in list(self._running.items()):
            if not transaction.decided:
                task.cancel()
