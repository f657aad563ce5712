"""A whole configuration applied while traffic flows, in every processor or in none, in two phases (``control.fleet.two_phases``).

    check       the etag, what needs a restart, the shares of the pool
    stage       what can fail is made beside what is in force: further processors, sockets that listen, addresses of upstreams, certificates, memory
                for counters
    change      one change in all processors; what was staged is taken back if it is not decided
    decide      the new state is in force in this process. Listeners that are gone take what waits in their backlogs, and no more. A step that fails
                is reported, and the others are taken: nothing can be taken back any more
    done        every processor has it: new listeners accept, and new processors take connections. Those that are not wanted any more drain in the
                background (``Pool.shrink``)

Counters of listeners and upstreams that are gone stay until their last connection has ended (``_settle``).
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.listening import Listening, rebound
from framegate.control.accept.resolver import Names, Resolution, Resolver, in_thread
from framegate.control.configuration.capacity import fitted
from framegate.control.configuration.cgroup import container
from framegate.control.configuration.child import Loaded
from framegate.control.configuration.difference import Difference, differences
from framegate.control.errors import AbortedError, ControlError, EtagError, FailedPreconditionError, StartError, UnavailableError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.checks import Checks
from framegate.control.steering.identities import Identities
from framegate.control.steering.pool import Pool, divided
from framegate.control.steering.rows import LogRows
from framegate.control.steering.taps import Taps
from framegate.control.steering.transactions import Transaction, Transactions, etag_of
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.cells import LISTENER, UPSTREAM, CellLayout, Place
from framegate.proxy.config.limits import limits_in_force
from framegate.proxy.config.model import ProxyConfig, difference_to_wire, largest_whole
from framegate.proxy.server.messages import Change, ClusterRow, Endpoints, RevokedRow
from framegate.proxy.server.protocol import revoked_row
from framegate.proxy.server.rows import Store, pack_stores
from framegate.proxy.tap.record import DIRECTIONS

if TYPE_CHECKING:
    from framegate.control.fleet.handlers import Handlers
    from framegate.control.fleet.identity import StagedIdentity
    from framegate.control.telemetry.export import Export, StagedExport

T = TypeVar("T")
SETTLE_S: Final = 1.0
SETTLE_LIMIT_S: Final = 120.0
_TRIES: Final = 5
_CLOSED_S: Final = 2.0


class Applied(NamedTuple):
    """A configuration that was applied: what was in force before and is now, and the differences. ``pending``: what is decided and not done yet, as
    of ``Pool.pending``.
    """

    before: ProxyConfig
    after: ProxyConfig
    differences: tuple[Difference, ...]
    pending: tuple[str, ...] = ()


class _ChangedError(Exception):
    """Another change was made while this one was staged: it is staged again."""


class _Staged(NamedTuple):
    """What a configuration needs, beside what is in force."""

    listeners: dict[str, Listening]  # all of them
    found: dict[str, Resolution]  # addresses of upstreams that are new, or have other endpoints
    stores: dict[str, Store]  # certificates of sections that are new, or other ones
    identity: "StagedIdentity | None"  # what authentication needs; None: there is none
    handlers: set[int] | None  # slots of handler processes that take the place of all others; None: the present ones stay
    revoked: dict[str, RevokedRow]  # users and certificates whose connections are to end, by listener
    export: "StagedExport | None" = None  # what telemetry needs; None: it stays as it is

    @property
    def endpoints(self) -> Endpoints:
        """``found``, as it goes over the link."""
        return {name: resolution.addresses for name, resolution in self.found.items()}


class _Planned(NamedTuple):
    """The change, without the share of a processor; and what follows from it in this process."""

    change: Change
    layout: CellLayout
    shares: dict[int, int]
    brokers: dict[str, ClusterRow]


class Configuration:
    """Applies configurations. Event loop only."""

    def __init__(
        self,
        supervisor: Supervisor,
        acceptor: Acceptor,
        resolver: Resolver,
        certificates: TlsStores,
        rotation: Rotation,
        pool: Pool,
        taps: Taps,
        checks: Checks,
        brokers: Brokers,
        identities: Identities,
        new_handlers: Callable[[ProxyConfig], "Handlers"],
        log_rows: LogRows,
        export: "Export | None",
        transactions: Transactions,
        meters: Meters,
        log: RowLog,
        task_monitor: TaskMonitor,
    ) -> None:
        self._supervisor: Final = supervisor
        self._acceptor: Final = acceptor
        self._resolver: Final = resolver
        self._certificates: Final = certificates
        self._rotation: Final = rotation
        self._pool: Final = pool
        self._taps: Final = taps
        self._checks: Final = checks
        self._brokers: Final = brokers
        self._identities: Final = identities
        self._new_handlers: Final = new_handlers
        self._log_rows: Final = log_rows
        self._export: Final = export
        self._transactions: Final = transactions
        self._meters: Final = meters
        self._log: Final = log
        self._lock: Final = asyncio.Lock()
        self._gone: dict[str, int] = {}  # upstreams that were removed, and when, as of ``Handover.accepted_ns``
        self._settler = task_monitor.repeat("configuration", self._settle, SETTLE_S, SETTLE_LIMIT_S)

    def close(self) -> None:
        self._settler.cancel()

    @property
    def etag(self) -> str:
        """Identifies the configuration in force."""
        return etag_of(self._config)

    @property
    def _config(self) -> ProxyConfig:
        return self._supervisor.desired.config

    async def apply(self, loaded: Loaded, etag: str = "", *, validate_only: bool = False) -> Applied:
        """Put a configuration in force. One that is equal changes nothing.

        Args:
            loaded: the configuration, and the files that it names.
            etag: that of the configuration that the caller has seen; empty: replace any.
            validate_only: only check, and return the result; no address is bound.

        Raises:
            EtagError: the configuration has changed. FailedPreconditionError: a change needs a restart (NEEDS_RESTART, with the keys), a share of the
            pool would be too small, an address cannot be used, or the proxy drains; nothing is applied. AbortedError: a processor refused; none has
            it. UnavailableError: processors could not be started, and nothing is applied; or it is decided, and not confirmed everywhere
            (CHANGE_PENDING; ``changed`` is what was applied).
        """
        after = fitted(loaded.config, container())
        if validate_only:
            return Applied(self._config, after, self._checked(after, etag))

        async def make(transaction: Transaction) -> Applied:
            async with self._lock:
                return await self._apply(loaded, after, etag, transaction)

        return await self._transactions.change("configuration", make)

    def _checked(self, after: ProxyConfig, etag: str) -> tuple[Difference, ...]:
        """The differences from what is in force. Raises what ``apply`` raises before anything is staged."""
        if etag and etag != self.etag:
            raise EtagError("configuration", self._config.node)
        self._check_serves()
        found = differences(self._config, after)
        refused = [item.path for item in found if item.effect == "restart"]
        if refused:
            text = f"nothing is applied: a restart is needed to change {', '.join(refused)}"
            raise FailedPreconditionError(text, reason="NEEDS_RESTART", keys=",".join(refused))
        if found:
            divided(after.memory_pool.size, range(after.processors), (), max(largest_whole(after)))
        return found

    def _check_serves(self) -> None:
        if self._acceptor.stopped or self._pool.draining:
            raise FailedPreconditionError("the proxy drains", reason="DRAINING")

    async def _apply(self, loaded: Loaded, after: ProxyConfig, etag: str, transaction: Transaction) -> Applied:
        self._checked(after, etag)
        found = await self._addresses(self._config, after)  # only another application could make it wrong
        if self._export is not None and after.telemetry != self._config.telemetry:
            await self._load_export(self._export, after)
        async with self._pool.scaling:
            more = await self._pool.start_more(after.processors)
            try:
                applied = await self._apply_beside(loaded, after, etag, found, more, transaction)
            finally:
                if not transaction.decided:
                    await self._pool.settle_more(more, decided=False)
        self._pool.size_origin = "configuration" if loaded.config.memory_pool.size else "container"
        self._pool.processors_origin = "configuration" if loaded.config.processors else "container"
        return applied._replace(pending=self._pool.pending)

    async def _apply_beside(
        self, loaded: Loaded, after: ProxyConfig, etag: str, found: dict[str, Resolution], more: Sequence[int], transaction: Transaction
    ) -> Applied:
        """Apply it, when the processors of the slots ``more`` have started."""
        for _ in range(_TRIES):
            before, changed = self._config, self._checked(after, etag)
            try:
                if changed:
                    async with self._identities.changing():
                        await self._decide(before, after, await self._stage(loaded, before, after, found), more, loaded, transaction)
            except _ChangedError:
                continue
            except UnavailableError as error:
                error.changed = Applied(before, after, changed, (str(error), *self._pool.pending)) if transaction.decided else None
                raise
            return Applied(before, self._config, changed)
        raise AbortedError("nothing is applied: other changes were made meanwhile", reason="CONFIGURATION_CHANGED")

    async def _decide(
        self, before: ProxyConfig, after: ProxyConfig, staged: _Staged, more: Sequence[int], loaded: Loaded, transaction: Transaction
    ) -> None:
        planned = _Planned(Change(), self._supervisor.desired.layout, self._supervisor.desired.shares, {})

        def compare() -> None:
            if self._config is not before:
                raise _ChangedError

        def check() -> None:
            nonlocal planned
            compare()
            self._check_serves()
            planned = self._plan(before, after, staged, more)
            self._supervisor.make_room(planned.layout)

        def build(slot: int) -> Change:
            return Change(**planned.change, share=planned.shares[slot])

        def commit(desired: DesiredState) -> None:
            compare()  # keys that no processor has are changed without waiting for other changes
            names = [item.name for item in after.upstreams]
            desired.config, desired.shares = after, planned.shares
            desired.endpoints = _those({**desired.endpoints, **staged.endpoints}, names)
            desired.stores = _those({**desired.stores, **staged.stores}, self._certificates.owners(after))
            desired.brokers = _those({**desired.brokers, **planned.brokers}, [item.name for item in after.upstreams if item.kafka is not None])
            desired.failing = _those(desired.failing, names)
            desired.retired = planned.change.get("retired", desired.retired)
            desired.rows_at_open = planned.change.get("rows_at_open", desired.rows_at_open)
            desired.request_sample = planned.change.get("request_sample", desired.request_sample)

        def decided() -> None:
            transaction.decide()
            self._put(before, after, staged, loaded, planned.layout)

        try:
            await self._supervisor.change(build, commit, check, decided, lambda: self._begin(after, staged, more))
        except BaseException:
            if not transaction.decided:
                await self._release(staged)
            raise
        self._supervisor.attempt(self._taps.made)

    def _plan(self, before: ProxyConfig, after: ProxyConfig, staged: _Staged, more: Sequence[int]) -> _Planned:
        change = Change(config=difference_to_wire(before, after))
        brokers = self._brokers.rows(after, staged.listeners)
        desired = self._supervisor.desired
        layout = desired.layout.after(after, self._kept(before, after), desired.broker_ids(brokers))
        if layout is not self._supervisor.desired.layout:
            change["cells"] = layout.wire
        if staged.found:
            change["endpoints"] = staged.endpoints
        if brokers:
            change["brokers"] = brokers
        if staged.handlers is not None and self._supervisor.handlers is not None:
            change["retired"] = self._supervisor.handlers.retire(staged.handlers)
        if staged.stores:
            change["stores"] = pack_stores(staged.stores)
        if staged.revoked:
            change["revoked"] = staged.revoked
        if staged.export is not None:
            traces = staged.export.settings.traces is not None
            change["rows_at_open"] = after.log.access.open or traces
            change["request_sample"] = after.telemetry.request_sample if traces else 0.0
        return _Planned(change, layout, self._shares(before, after, more), brokers)

    def _shares(self, before: ProxyConfig, after: ProxyConfig, more: Sequence[int]) -> dict[int, int]:
        """The shares of the pool under another configuration: those in force, if the size and the number of processors stay and none is too small.
        Raises FailedPreconditionError: one would be.
        """
        size, largest, shares = after.memory_pool.size, max(largest_whole(after)), self._supervisor.desired.shares
        wanted, lasting = self._pool.wanted_slots(), self._pool.lasting_slots()
        if (size, after.processors) == (before.memory_pool.size, before.processors) and min(shares[slot] for slot in wanted) >= largest:
            return shares
        staying = [*lasting, *more][: after.processors]
        return divided(size, staying, [slot for slot in wanted if slot not in staying], largest)

    async def _addresses(self, before: ProxyConfig, after: ProxyConfig) -> dict[str, Resolution]:
        known = {item.name: item.addresses for item in before.upstreams}
        names = Names(item for item in after.upstreams if item.addresses != known.get(item.name))
        return await in_thread(names.ask) if names.any else names.ask()

    async def _stage(self, loaded: Loaded, before: ProxyConfig, after: ProxyConfig, found: dict[str, Resolution]) -> _Staged:
        stores = self._certificates.staged(after, loaded.tls_files, loaded.certificates)
        try:
            identity = await self._identities.stage(after)
            revoked = await self._revoked(after, identity, stores)
            self._resolver.start()
            await self._closed()
            listeners = rebound(self._acceptor.listeners, self._acceptor.leaving, after.listeners)
            staged = _Staged(listeners, found, stores, identity, None, revoked)
            try:
                if self._export is not None and after.telemetry != before.telemetry:
                    staged = staged._replace(export=self._export.stage(after))
                if _handling(before) != _handling(after):
                    staged = staged._replace(handlers=await self._stage_handlers(after))
                return staged
            except BaseException:
                await self._release(staged)
                raise
        except StartError as error:
            raise _not_applied(error) from error

    async def _revoked(self, after: ProxyConfig, identity: "StagedIdentity | None", stores: Mapping[str, Store]) -> dict[str, RevokedRow]:
        users, serials = await self._identities.revoked(identity), await self._certificates.revoked(after, stores)
        return {name: revoked_row(users.get(name, ()), serials.get(name, ())) for name in users | serials}

    async def _load_export(self, export: "Export", after: ProxyConfig) -> None:
        try:
            await in_thread(lambda: export.load(after))
        except StartError as error:
            raise _not_applied(error) from error

    async def _closed(self) -> None:
        """Wait until the sockets of listeners that went before are closed: their addresses may be wanted again."""
        with contextlib.suppress(TimeoutError):  # then the address is in use
            async with asyncio.timeout(_CLOSED_S):
                while self._acceptor.closing:
                    await asyncio.sleep(0.002)

    async def _stage_handlers(self, after: ProxyConfig) -> set[int]:
        if self._supervisor.handlers is None:
            self._supervisor.handlers = handlers = self._new_handlers(after)
            for processor in self._supervisor.running:
                handlers.enter(processor)
        return await self._supervisor.handlers.stage(after)

    async def _release(self, staged: _Staged) -> None:
        if staged.export is not None and self._export is not None:
            self._export.release(staged.export)
        if staged.handlers is not None and self._supervisor.handlers is not None:
            await self._supervisor.handlers.release(staged.handlers)
        for name, listening in staged.listeners.items():
            if self._acceptor.listeners.get(name) is not listening:
                listening.close()

    def _begin(self, after: ProxyConfig, staged: _Staged, more: Sequence[int]) -> None:
        """Every processor has the configuration: connections may come."""
        if staged.handlers is not None and self._supervisor.handlers is not None:
            self._supervisor.attempt(functools.partial(self._supervisor.handlers.follow, staged.handlers, after.drain.timeout_ms))
        self._supervisor.release_slots(more)
        if after.processors < len(self._pool.lasting_slots()):
            self._pool.shrink(after.processors)
        self._acceptor.accept_new()

    def _put(self, before: ProxyConfig, after: ProxyConfig, staged: _Staged, loaded: Loaded, layout: CellLayout) -> None:
        """Have the parts of this process follow the configuration, which is decided."""
        removed = {item.name for item in before.upstreams} - {item.name for item in after.upstreams}
        self._gone.update(dict.fromkeys(removed, self._acceptor.now_ns()))
        limits = limits_in_force(after.limits, {item.name: item.limits for item in after.listeners})
        self._supervisor.attempt(
            lambda: self._follow_layout(layout),
            *(functools.partial(staged.listeners[item.name].configure, item) for item in after.listeners),
            lambda: self._acceptor.put(staged.listeners),
            lambda: self._acceptor.set_limits(limits, after.limits.protected_listener),
            lambda: self._meters.prepare([item.name for item in after.listeners]),
            lambda: self._resolver.follow(after.upstreams, staged.found),
            lambda: self._certificates.follow(after, loaded.certificates, self._rotation),
            lambda: self._rotation.configure(after.rotation),
            lambda: self._identities.follow(staged.identity),
            lambda: self._checks.follow(after),
            lambda: self._brokers.follow(after),
            lambda: self._taps.replaced(before, after),
            lambda: self._log_rows.set_level(after.log.level),
            lambda: self._follow_export(after, staged),
        )

    def _follow_export(self, after: ProxyConfig, staged: _Staged) -> None:
        if self._export is not None:
            self._export.follow_listeners(after)
            if staged.export is not None:
                self._export.follow(staged.export)

    # --- what is gone --------------------------------------------------------------------------------------------------------------

    def _kept(self, before: ProxyConfig, after: ProxyConfig) -> set[Place]:
        """The owners of counters that are not in a configuration, and still count: they have connections, or their frames are in the tap's sums."""
        self._supervisor.connections.count_handed()
        self._acceptor.settle()
        # A processor may get connections of a listener that goes now after it has the change.
        oldest = min((next(iter(processor.open)) for processor in self._supervisor.alive if processor.open), default=1 << 63)
        listeners = self._acceptor.leaving.keys() | self._tapped()
        upstreams = {name for name, gone_ns in self._gone.items() if gone_ns >= oldest}
        if before is not after:
            listeners |= {item.name for item in before.listeners}
            upstreams |= {item.name for item in before.upstreams}
        return {(LISTENER, name) for name in listeners} | {(UPSTREAM, name) for name in upstreams}

    def _tapped(self) -> set[str]:
        if self._config.tap is None:
            return set()
        readers = [reader for _, reader in self._supervisor.cells]
        names = self._supervisor.desired.layout.names(LISTENER)
        return {name for name in names for direction in DIRECTIONS for reader in readers if reader.cell("framegate.tap.seen", name, direction)}

    def _follow_layout(self, layout: CellLayout) -> None:
        """Count by another layout, and drop what is known of owners without a place in it."""
        former = self._supervisor.desired.layout
        if layout is former:
            return
        self._supervisor.follow_layout(layout)
        for kind, name, *_ in set(former.places) - set(layout.places):
            if kind == LISTENER:
                self._meters.forget(name)
            elif kind == UPSTREAM:
                self._gone.pop(name, None)

    async def _settle(self) -> None:
        """Give up the counters of listeners and upstreams that are gone and have no connection any more."""
        layout = self._supervisor.desired.layout

        def check() -> None:
            nonlocal layout
            desired = self._supervisor.desired
            layout = desired.layout.after(self._config, self._kept(self._config, self._config), desired.broker_ids())
            self._supervisor.make_room(layout)

        if self._lock.locked() or self._pool.scaling.locked():
            return
        self._acceptor.accept_new()
        async with self._pool.scaling:  # so that no slot is added
            try:
                check()
                if layout is self._supervisor.desired.layout:
                    return
                await self._supervisor.change(lambda slot: Change(cells=layout.wire), lambda desired: self._follow_layout(layout), check)
            except ControlError as error:
                self._log.write("counters_kept", level="warning", error=str(error))


def _not_applied(error: StartError) -> FailedPreconditionError:
    return FailedPreconditionError(f"nothing is applied: {error}", reason=error.reason, **error.metadata)


def _handling(config: ProxyConfig) -> tuple[object, ...]:
    """What handler processes follow from; they are the same for another order of listeners."""
    handlers = sorted((item.name, item.handler) for item in config.listeners if item.handler is not None)
    return (handlers, config.handlers) if handlers else ()


def _those(values: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    return {name: values[name] for name in names if name in values}
