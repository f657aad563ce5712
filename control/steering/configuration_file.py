"""The configuration file of the start: applied again by SIGHUP, by a call, or by itself (``config.watch``); and what in force differs from it.

The file is read in the validator process, together with the files that it names. One that is not valid, or cannot be applied, changes nothing. What
was set by hand, and a text that was applied by a call, differs from the file as it was loaded last, until the file is applied.
"""

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from framegate.control.configuration.child import Loaded, loaded_from_row
from framegate.control.configuration.difference import Difference, differences, values
from framegate.control.configuration.document import MAX_BYTES, ZONE, ConfigurationError
from framegate.control.configuration.tls_files import named_here
from framegate.control.configuration.units import counted
from framegate.control.errors import ControlError, UnavailableError
from framegate.control.events import Bus, Row
from framegate.control.files import Contents
from framegate.control.meters import Meters
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.source import Refusal, Reloader, Source
from framegate.control.steering.configuration import Applied, Configuration
from framegate.control.steering.pool import Pool
from framegate.control.steering.rows import Audit
from framegate.proxy.config.model import ProxyConfig

KIND: Final = "configuration"
By = Literal["call", "signal", "watch"]  # Who has a configuration applied
_METHOD: Final = "framegate.control.v1.ConfigurationService/ApplyConfiguration"
_SHOWN: Final = 20  # Paths or faults in a row


class ConfigurationFile(Reloader):
    """The file, and the configuration in force beside it.

    Args:
        pool: knows which of its values the container decides.
        ask: a question of the validator process (``framegate.control.configuration.child.load_row``).
        audit: gets a row of each change that no call asks for; those of calls have theirs.
    """

    def __init__(
        self,
        loaded: Loaded,
        configuration: Configuration,
        in_force: Callable[[], ProxyConfig],
        pool: Pool,
        ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        rotation: Rotation,
        audit: Audit,
        events: Bus,
        meters: Meters,
    ) -> None:
        self.path: Final = loaded.path  # of the file, absolute
        self.config = loaded.config  # what the file held when it was loaded last
        self._configuration = configuration
        self._in_force = in_force
        self._pool = pool
        self._ask = ask
        self._rotation = rotation
        self._audit = audit
        self._events = events
        self._meters = meters
        self._lock = asyncio.Lock()
        self._compared: tuple[ProxyConfig, ProxyConfig, tuple[Difference, ...]] = (loaded.config, loaded.config, ())
        self._watch(loaded)
        meters.gauge("config.differences", lambda: float(len(self.by_hand)))
        meters.gauge("config.file.changed", lambda: float(self.changed))

    def _watch(self, loaded: Loaded) -> None:
        source = Source(
            owner=KIND,
            kind=KIND,
            paths=(self.path,),
            reloader=self,
            in_force=loaded.digest,
            max_bytes=MAX_BYTES,
            automatic=lambda: self._in_force().config.watch,
        )
        self._rotation.watch(source)

    # --- what is in force --------------------------------------------------------------------------------------------------------

    @property
    def in_force(self) -> ProxyConfig:
        """The configuration in force as a file would have it: 0 for what the container decides."""
        config = self._in_force()
        size = 0 if self._pool.size_origin == "container" else config.memory_pool.size
        processors = 0 if self._pool.processors_origin == "container" else config.processors
        return dataclasses.replace(config, processors=processors, memory_pool=dataclasses.replace(config.memory_pool, size=size))

    @property
    def etag(self) -> str:
        """Identifies the configuration in force."""
        return self._configuration.etag

    @property
    def by_hand(self) -> tuple[Difference, ...]:
        """How what is in force differs from the file as it was loaded last. Any thread."""
        file, now = self.config, self.in_force
        if self._compared[0] is not file or self._compared[1] != now:
            self._compared = (file, now, differences(file, now))
        return self._compared[2]

    @property
    def pending(self) -> tuple[str, ...]:
        """What is decided and not done yet, in words."""
        return self._pool.pending

    @property
    def changed(self) -> bool:
        """Whether the file holds something else than when it was loaded last."""
        return self._rotation.changed(KIND, KIND)

    @property
    def refusal(self) -> Refusal | None:
        """Why a changed file is not in force, once that was reported."""
        return self._rotation.refusal(KIND, KIND)

    # --- changes -----------------------------------------------------------------------------------------------------------------

    async def load(self, text: str | None = None, *, local: bool = True) -> Loaded:
        """What is in the file, or would be with a text. ``local``: a text may name anything of this machine; otherwise only what the configuration in
        force, or the file, names of it. Raises ConfigurationError: with every fault. DeniedError: the text names more. UnavailableError: its reader
        failed (READER_FAILED).
        """
        named = None if local or text is None else sorted(named_here(self.config) | named_here(self._in_force()))
        try:
            row = await self._ask({"load": {"path": self.path, "text": text, "zone": os.environ.get(ZONE, ""), "named": named}})
        except (OSError, RuntimeError, TimeoutError) as error:
            text = f"the configuration was not read: {str(error) or 'no answer in time'}"
            raise UnavailableError(text, reason="READER_FAILED") from error
        return loaded_from_row(row)

    async def apply(
        self, text: str | None = None, etag: str = "", *, by: By = "call", local: bool = True, validate_only: bool = False
    ) -> tuple[Loaded, Applied]:
        """Put the file, or a text in its place, in force: all of it or nothing.

        Args:
            text: applied instead of the file, which stays what ``by_hand`` compares with; None: the file.
            etag: that of the configuration that the caller has seen; empty: replace any.
            validate_only: only check.

        Raises ConfigurationError: with every fault. Otherwise as of ``load`` and ``Configuration.apply``.
        """
        async with self._lock:
            loaded = await self.load(text, local=local)
            return loaded, await self._apply(loaded, etag, by, of_file=text is None, validate_only=validate_only)

    async def _apply(self, loaded: Loaded, etag: str, by: By, *, of_file: bool, validate_only: bool = False) -> Applied:
        try:
            applied = await self._configuration.apply(loaded, etag, validate_only=validate_only)
        except UnavailableError as error:
            if isinstance(error.changed, Applied):  # it is decided
                self._took(loaded, error.changed, by, of_file=of_file)
            raise
        if not validate_only:
            self._took(loaded, applied, by, of_file=of_file)
        return applied

    def _took(self, loaded: Loaded, applied: Applied, by: By, *, of_file: bool) -> None:
        if of_file:
            self.config = loaded.config
        if of_file and by != "watch":  # otherwise the rotation notes it
            self._watch(loaded)
            self._meters.add("reload.count", KIND, "")
        for warning in loaded.warnings:
            self._events.publish({"event": "configuration_warning", **dataclasses.asdict(warning)}, level="warning")
        if applied.differences:
            keys = [item.path for item in applied.differences]
            row = {"by": by, "file": self.path if of_file else "", "count": len(keys), "keys": keys[:_SHOWN], "etag": self.etag}
            row["pending"] = list(applied.pending)
            self._events.publish({"event": "configuration_applied", **row})

    async def reload(self) -> str:
        """Apply the file for a signal; the outcome in words. A failure is a row."""
        try:
            _, applied = await self._audited("SIGHUP", lambda: self.apply(by="signal"))
        except (ConfigurationError, ControlError) as error:
            if isinstance(error, ControlError) and isinstance(error.changed, Applied):
                return _said(error.changed)
            faults = [str(fault) for fault in error.faults[:_SHOWN]] if isinstance(error, ConfigurationError) else []
            reason = refusal_text(error)
            self._meters.add("reload.count", KIND, "refused")
            self._events.publish({"event": "configuration_refused", "file": self.path, "reason": reason, "faults": faults}, level="error")
            return f"refused: {reason}"
        return _said(applied)

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        """See ``Reloader``: the file changed by itself."""
        try:
            text = found[KIND][self.path].decode()
        except UnicodeDecodeError:
            return {KIND: Refusal(self.path, "is not UTF-8")}
        try:
            await self._audited("config.watch", lambda: self._watched(text))
        except (ConfigurationError, ControlError) as error:
            if not isinstance(getattr(error, "changed", None), Applied):
                return {KIND: Refusal(self.path, refusal_text(error))}
        return {}

    async def _watched(self, text: str) -> tuple[Loaded, Applied]:
        async with self._lock:
            loaded = await self.load(text)
            return loaded, await self._apply(loaded, "", "watch", of_file=True)

    async def _audited(self, who: str, work: Callable[[], Awaitable[tuple[Loaded, Applied]]]) -> tuple[Loaded, Applied]:
        place = await self._audit.reserve()
        row: Row = {"event": "audit", "who": who, "role": "admin", "method": _METHOD, "request": {"file": self.path}}
        applied: Any = None
        try:
            answer = await work()
            applied, failure = answer[1], ""
            return answer
        except BaseException as error:
            applied, failure = getattr(error, "changed", None), getattr(error, "reason", type(error).__name__)
            raise
        finally:
            before, after = values(applied.differences) if isinstance(applied, Applied) else (None, None)
            self._audit.publish({**row, "before": before, "after": after, "result": "FAILED" if failure else "OK", "error": failure}, place)
            await self._audit.written()


def _said(applied: Applied) -> str:
    return "; ".join((f"applied, {counted(len(applied.differences), 'value')} changed", *applied.pending))


def refusal_text(error: Exception) -> str:
    """Why a configuration is not applied, in one line: of a file with faults the first, and how many there are."""
    if not isinstance(error, ConfigurationError):
        return str(error) or type(error).__name__
    more = f" (and {counted(len(error.faults) - 1, 'more fault')})" if len(error.faults) > 1 else ""
    return f"{error.faults[0]}{more}"
