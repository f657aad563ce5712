"""The control plane over running processors: what ``control.plane`` promises, done with supervisor, acceptor and resolver."""

import asyncio
import contextlib
import dataclasses
import heapq
import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from control.errors import ControlError, InvalidArgumentError, NotFoundError, UnavailableError, Violation
from control.fleet.processor import Processor
from control.fleet.slot import Slot
from control.fleet.supervisor import Endpoints, Facts, Supervisor
from control.guard import Guard
from control.intake.acceptor import Acceptor
from control.intake.resolver import Resolver
from control.logs import RowLog
from control.meters import Meters
from control.plane import (
    MAX_HOLDERS,
    Attributes,
    BuildInfo,
    ControlPlane,
    DownEndpoint,
    DrainResult,
    Health,
    Holder,
    Limit,
    ListenerStatus,
    Outcome,
    PoolStatus,
    ProcessorStatus,
    Row,
    Subscriber,
    TapRuleStatus,
    UpstreamStatus,
    rows_per_page,
)
from control.steering.pool import Pool, counted, too_small
from control.steering.taps import Rules, Taps
from control.steering.transactions import Transaction, Transactions
from proxy.cells import CellReader
from proxy.config.model import MAX_RECEIVE_SIZE, ListenerConfig, ProxyConfig, TapRule, whole_request
from proxy.network.connection_id import format_connection_id, slot_of

__all__ = ["Events", "Steering"]

REQUEST_MS: Final = 5_000
LINK_ROWS: Final = 100
"""Rows asked for at once: under 1 ms to make in the processor, and to read here. A page is put together of several answers."""
ALIVE_MS: Final = 5_000


class Events:
    """Those who want to see event rows. A subscriber that raises is our bug: it is logged, and the others still get the row."""

    def __init__(self, log: RowLog) -> None:
        self._log = log
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """See ``ControlPlane.subscribe``."""
        self._subscribers.append(subscriber)

        def cancel() -> None:
            with contextlib.suppress(ValueError):
                self._subscribers.remove(subscriber)

        return cancel

    def publish(self, row: Row) -> None:
        """Give a row to everybody."""
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(row)
            except Exception as error:
                self._log.write("subscriber_failed", level="error", error=repr(error))


class Steering(ControlPlane):
    """The one implementation. ``acceptor.listeners`` and ``supervisor.facts`` are the truth; nothing is kept twice. ``tapped``: see ``Taps``."""

    def __init__(
        self,
        supervisor: Supervisor,
        acceptor: Acceptor,
        resolver: Resolver,
        meters: Meters,
        log: RowLog,
        events: Events,
        guard: Guard,
        tapped: Callable[[Rules], None],
    ) -> None:
        self.resolver = resolver
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._meters = meters
        self._log = log
        self._events = events
        self._started_ns = time.time_ns()
        self._serving = False
        self._guard = guard
        self._transactions = Transactions(log)
        self.pool = Pool(supervisor, self._transactions, meters, log, guard)
        self._taps = Taps(supervisor, self._transactions, meters, tapped)
        events.subscribe(self._taps.note)
        self._ticker = asyncio.create_task(guard.job("loop", ALIVE_MS / 1000).keep_going(self._tick))
        meters.gauge("config.revision", lambda: float(supervisor.facts.revision))

    async def _tick(self) -> None:
        await asyncio.sleep(0.5)

    def close(self) -> None:
        """End the background tasks, and take back what is not decided."""
        self._ticker.cancel()
        self.pool.close()
        self._transactions.close()

    def set_serving(self) -> None:
        """Every processor was ready and the listeners accept."""
        self._serving = True

    # --- what is -----------------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> ProxyConfig:
        return self._facts.config

    @property
    def _facts(self) -> Facts:
        return self._supervisor.facts

    @property
    def started_ns(self) -> int:
        return self._started_ns

    @property
    def build(self) -> BuildInfo:
        modules = next((processor.modules for processor in self._supervisor.running if processor.modules), {})
        compiled = any(file.endswith(".so") for file in modules.values())
        return BuildInfo(version=_version(), compiled=compiled, modules=modules)

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        return self._supervisor.cells

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        return self._meters.snapshot()

    def health(self) -> Health:
        statuses = self._supervisor.status()
        running = [item for item in statuses if item.state in ("running", "draining")]
        beating = all(item.heartbeat_age_ms < ALIVE_MS for item in running)
        return Health(
            started=self._serving,
            alive=not self._guard.standing and beating,
            ready=self._serving and not self.pool.draining and bool(running),
        )

    async def status(self) -> list[ProcessorStatus]:
        return self._supervisor.status()

    async def list_listeners(self) -> list[ListenerStatus]:
        self._supervisor.count_handed()
        return [self._listener_status(name) for name in self._acceptor.listeners]

    def _listener_status(self, name: str) -> ListenerStatus:
        listening = self._acceptor.listeners[name]
        config = self._listener(name)
        return ListenerStatus(
            name=name,
            address=listening.address,
            upstream=config.upstream,
            protocol=config.protocol,
            framing=config.framing,
            tls=config.tls is not None,
            max_receive_size=config.max_receive_size,
            max_connections=config.max_connections,
            connections=listening.open,
            accepting=listening.accepting,
            forwarding=config.forwarding,
        )

    async def list_upstreams(self) -> list[UpstreamStatus]:
        down = await self._down_endpoints()
        return [
            UpstreamStatus(
                name=item.name,
                endpoints=item.endpoints,
                addresses=self.resolver.current[item.name].texts(),
                tls=item.tls is not None,
                max_receive_size=item.max_receive_size,
                error=self.resolver.current[item.name].error,
                down=down.get(item.name, ()),
            )
            for item in self.config.upstreams
        ]

    async def _down_endpoints(self) -> dict[str, tuple[DownEndpoint, ...]]:
        """What the processors leave out, by upstream; of an address that several do, as the first of them says."""
        answers = await asyncio.gather(*(processor.request({"type": "upstreams"}, REQUEST_MS) for processor in self._supervisor.running))
        found: dict[str, dict[str, DownEndpoint]] = {}
        for answer in answers:
            for (upstream, address), row in {(row["upstream"], row["endpoint"]): row for row in answer["rows"]}.items():
                each = found.setdefault(upstream, {})
                known = each.get(address) or DownEndpoint(address=address, reason=row["reason"], detail=row["detail"], processors=0)
                each[address] = dataclasses.replace(known, processors=known.processors + 1)
        return {name: tuple(each.values()) for name, each in found.items()}

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        return self._events.subscribe(subscriber)

    def reserve_audit(self) -> None:
        if not self._log.reserve():
            text = "nothing is changed that cannot be audited: stdout, where the audit rows go, is not read or cannot be written"
            raise UnavailableError(text, reason="AUDIT_BLOCKED")

    def audit(self, record: Row) -> None:
        fields = dict(record)
        self._log.write_reserved(str(fields.pop("event", "audit")), fields)

    # --- channels ----------------------------------------------------------------------------------------------------------------

    def _listener(self, name: str) -> ListenerConfig:
        for listener in self.config.listeners:
            if listener.name == name:
                return listener
        raise NotFoundError("listener", name)

    async def list_channels(self, listener: str | None = None, page_size: int = 0, page_token: str = "") -> tuple[list[Row], str]:
        if listener is not None:
            self._listener(listener)
        size = rows_per_page(page_size)
        slot, after = _page_position(page_token)
        rows: list[Row] = []
        processors = [processor for processor in self._supervisor.running if processor.slot >= slot]
        for index, processor in enumerate(processors):
            start = after if processor.slot == slot else 0
            while len(rows) < size:
                message = {"type": "list", "after": start, "limit": min(size - len(rows), LINK_ROWS), "listener": listener}
                answer = await processor.request(message, REQUEST_MS)
                rows += answer["rows"]
                start = answer["next"] or 0
                if not start:
                    break
            if start:
                return rows, f"{processor.slot}:{start}"
            if len(rows) >= size and index + 1 < len(processors):
                return rows, f"{processors[index + 1].slot}:0"
        return rows, ""

    async def describe_channel(self, channel: int) -> Row:
        processor = self._processor_of(channel)
        if processor is not None:
            answer = await processor.request({"type": "describe", "connection": channel}, REQUEST_MS)
            if answer["row"] is not None:
                row: Row = answer["row"]
                return row
        raise NotFoundError("channel", format_connection_id(channel))

    def _processor_of(self, channel: int) -> Processor | None:
        return next((item for item in self._supervisor.running if item.slot == slot_of(channel)), None)

    async def mute_channels(self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "") -> Outcome:
        return await self._act("mute", channels, listener, reason)

    async def unmute_channels(self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "") -> Outcome:
        return await self._act("unmute", channels, listener, reason)

    async def close_channels(self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "") -> Outcome:
        return await self._act("close", channels, listener, reason)

    async def _act(self, verb: str, channels: Sequence[int], listener: str | None, reason: str) -> Outcome:
        if bool(channels) == (listener is not None):
            raise InvalidArgumentError([Violation("channels", "name channels or a listener, and not both")])
        if listener is not None:
            self._listener(listener)
            messages = [(processor, {"type": verb, "listener": listener, "reason": reason}) for processor in self._supervisor.running]
            missing: list[int] = []
        else:
            messages, missing = self._by_processor(verb, channels, reason)
        outcome = await self._transactions.run(verb, lambda transaction: self._ask(transaction, verb, messages, missing))
        if len(channels) == 1 and outcome.missing:
            raise NotFoundError("channel", format_connection_id(outcome.missing[0]))
        return outcome

    async def _ask(self, transaction: Transaction, verb: str, messages: list[tuple[Processor, Row]], missing: list[int]) -> Outcome:
        """Ask each processor, and wait for all: what one does is done, whatever the others say."""
        transaction.decide()
        answers = await asyncio.gather(*(_answer(processor, message) for processor, message in messages))
        failures = [answer for answer in answers if isinstance(answer, UnavailableError)]
        told = [answer for answer in answers if not isinstance(answer, UnavailableError)]
        affected = [item for answer in told for item in answer["affected"]]
        missing = missing + [item for answer in told for item in answer["missing"]]
        undone = [item for answer in told for item in answer["undone"]]
        if failures:
            silent = all(error.reason == "PROCESSOR_SILENT" for error in failures)
            pending = verb == "mute" and silent and all(_looked(self._supervisor.slots[int(error.facts["processor"])]) for error in failures)
            raise _unanswered(verb, failures, affected, missing, pending=pending)
        if undone:
            text = f"{verb} is in force for {len(affected)} channels, and not for {len(undone)}: {', '.join(map(format_connection_id, undone[:3]))}"
            facts = {"affected_count": str(len(affected)), "missing_count": str(len(missing)), "undone_count": str(len(undone))}
            raise UnavailableError(text, reason="PARTLY_DONE", **facts)
        return Outcome(affected=tuple(affected), missing=tuple(missing))

    def _by_processor(self, verb: str, channels: Sequence[int], reason: str) -> tuple[list[tuple[Processor, Row]], list[int]]:
        groups: dict[Processor, list[int]] = {}
        missing: list[int] = []
        for channel in dict.fromkeys(channels):
            processor = self._processor_of(channel)
            if processor is None:
                missing.append(channel)
            else:
                groups.setdefault(processor, []).append(channel)
        return [(processor, {"type": verb, "connections": ids, "reason": reason}) for processor, ids in groups.items()], missing

    # --- limits and the pool -----------------------------------------------------------------------------------------------------

    async def get_limits(self, listener: str | None = None) -> list[Limit]:
        if listener is not None:
            self._listener(listener)
        return [
            Limit(listener=item.name, max_receive_size=item.max_receive_size)
            for item in self.config.listeners
            if listener is None or item.name == listener
        ]

    async def set_limit(self, listener: str, max_receive_size: int) -> Limit:
        return await self._transactions.run(f"limit of {listener}", lambda transaction: self._set_limit(listener, max_receive_size, transaction))

    async def _set_limit(self, listener: str, max_receive_size: int, transaction: Transaction) -> Limit:
        with counted(self._meters):
            self._listener(listener)
            if not MAX_RECEIVE_SIZE.takes(max_receive_size):
                ends = f"{MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most}"
                raise InvalidArgumentError([Violation("max_receive_size", f"must be from {ends} bytes, not {max_receive_size}")])

            def check() -> None:
                whole = whole_request(max_receive_size, self._listener(listener).forwarding.requests)
                if whole > self.pool.least_share():
                    raise too_small(self.pool.least_share(), whole)

            def commit(facts: Facts) -> None:
                listeners = tuple(
                    dataclasses.replace(item, max_receive_size=max_receive_size) if item.name == listener else item for item in facts.config.listeners
                )
                facts.config = dataclasses.replace(facts.config, listeners=listeners)

            await self._supervisor.change(lambda slot: {"max_receive_size": {listener: max_receive_size}}, commit, check, transaction.decide)
            return Limit(listener=listener, max_receive_size=max_receive_size)

    async def get_pool(self) -> PoolStatus:
        return self.pool.status()

    async def top_holders(self, count: int) -> list[Holder]:
        if not 1 <= count <= MAX_HOLDERS:
            raise InvalidArgumentError([Violation("count", f"must be from 1 to {MAX_HOLDERS}, not {count}")])
        answers = await asyncio.gather(*(_held(processor, count) for processor in self._supervisor.running))
        rows = [row for answer in answers for row in answer]
        return [_holder(row) for row in heapq.nlargest(count, rows, key=lambda row: int(row["bytes"]))]

    async def set_pool_size(self, size: int) -> PoolStatus:
        return await self.pool.set_size(size)

    async def set_processors(self, count: int) -> PoolStatus:
        return await self.pool.set_processors(count)

    async def list_tap_rules(self) -> list[TapRuleStatus]:
        return self._taps.rules()

    async def create_tap_rule(self, rule: TapRule, before: str = "", *, validate_only: bool = False) -> TapRuleStatus:
        return await self._taps.create(rule, before, validate_only=validate_only)

    async def update_tap_rule(
        self, name: str, changes: Mapping[str, Any], before: str | None = None, etag: str = "", *, validate_only: bool = False
    ) -> TapRuleStatus:
        return await self._taps.update(name, changes, before, etag, validate_only=validate_only)

    async def delete_tap_rule(self, name: str, etag: str = "", *, validate_only: bool = False) -> None:
        await self._taps.delete(name, etag, validate_only=validate_only)

    async def set_endpoints(self) -> None:
        """Give the resolver's addresses to every processor, unless they have them; logged, not raised, when one refuses: the next round tries
        again.
        """
        current = self.resolver.current
        endpoints = {name: resolution.addresses for name, resolution in current.items()}
        if _as_sets(endpoints) == _as_sets(self._facts.endpoints):
            return

        def commit(facts: Facts) -> None:
            facts.endpoints = endpoints

        try:
            await self._supervisor.change(lambda slot: {"endpoints": endpoints}, commit)
            self._log.write("endpoints_changed", upstreams={name: resolution.texts() for name, resolution in current.items()})
        except ControlError as error:
            self._log.write("endpoints_refused", level="error", error=str(error))

    # --- drain -------------------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_ms: int | None = None, *, wait: bool = True) -> DrainResult:
        timeout = self.config.drain.timeout_ms if timeout_ms is None else timeout_ms
        if timeout < 0:
            raise InvalidArgumentError([Violation("timeout", "must not be negative")])
        return await self._transactions.run("drain", lambda transaction: self._drain(transaction, timeout, wait=wait))

    async def _drain(self, transaction: Transaction, timeout_ms: int, *, wait: bool) -> DrainResult:
        transaction.decide()
        self.pool.draining = True
        self._acceptor.stop()
        before = self._open()
        self._log.write("draining", timeout_ms=timeout_ms, connections=before)
        silent = await self._supervisor.drain_slots(list(self._supervisor.slots), timeout_ms, wait=wait)
        after = self._open()
        if silent:
            slots = ",".join(map(str, silent))
            raise UnavailableError(f"the proxy drains, but processor {slots} has not said so", reason="PROCESSOR_SILENT", processors=slots)
        if wait:
            self._log.write("drained", connections=after)
        return DrainResult(closed=max(0, before - after), open=after)

    def _open(self) -> int:
        self._supervisor.count_handed()
        return sum(listening.open for listening in self._acceptor.listeners.values())


async def _held(processor: Processor, count: int) -> list[Row]:
    """Rows of those who hold most in a processor; one that is gone has given everything back."""
    try:
        rows: list[Row] = (await processor.request({"type": "holders", "limit": count}, REQUEST_MS))["rows"]
    except UnavailableError as error:
        if error.reason != "PROCESSOR_GONE":
            raise
        return []
    return rows


def _holder(row: Row) -> Holder:
    return Holder(
        channel=row["id"],
        listener=row["listener"],
        side=row["side"],
        peer=row["peer"],
        kind=row["kind"],
        bytes=row["bytes"],
        muted=tuple(row["muted"]),
        muted_ns=row["muted_ns"],
        last_active_ns=row["last_active_ns"],
    )


def _as_sets(endpoints: Endpoints) -> dict[str, set[tuple[Any, ...]]]:
    """Name servers rotate their answers; an order that differs is no change."""
    return {name: {tuple(item) for item in rows} for name, rows in endpoints.items()}


async def _answer(processor: Processor, message: Row) -> Row | UnavailableError:
    """What a processor did, or why that is not known. One that is gone has taken its channels with it: those named are missing."""
    try:
        return await processor.request(message, REQUEST_MS)
    except UnavailableError as error:
        if error.reason == "PROCESSOR_GONE":
            return {"affected": [], "missing": message.get("connections", []), "undone": []}
        error.facts["processor"] = str(processor.slot)
        return error


def _looked(slot: Slot) -> bool:
    """Whether its processor has looked at what it was asked ``REQUEST_MS`` ago: it does within 50 ms of traffic, and beats as often."""
    return 0 <= slot.heartbeat_age_ms() < REQUEST_MS // 2


def _unanswered(verb: str, failures: list[UnavailableError], affected: list[int], missing: list[int], *, pending: bool) -> UnavailableError:
    """Some did it, and some did not say so in time; ``pending``: those have begun to."""
    slots = ",".join(error.facts["processor"] for error in failures)
    facts = {"processors": slots, "affected_count": str(len(affected)), "missing_count": str(len(missing))}
    done = f"{verb} is in force for {len(affected)} channels"
    if pending:
        text = f"{done}; in processor {slots} it is set, but not in force within {REQUEST_MS} ms: a frame begun has not ended; see muting"
        return UnavailableError(text, reason="MUTE_PENDING", **facts)
    return UnavailableError(f"{done}; of processor {slots} it is not known: {failures[0]}", reason=failures[0].reason, **facts)


def _page_position(page_token: str) -> tuple[int, int]:
    if not page_token:
        return 0, 0
    slot, _, after = page_token.partition(":")
    if not (slot.isascii() and slot.isdigit() and after.isascii() and after.isdigit()):
        raise InvalidArgumentError([Violation("page_token", "is not one that a page gave")])
    return int(slot), int(after)


def _version() -> str:
    try:
        return importlib.metadata.version("framegate")
    except importlib.metadata.PackageNotFoundError:
        return "0+checkout"
