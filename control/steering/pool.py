"""The memory pool and the number of processors. The pool is divided over the slots; the shares follow the number of processors and their need.

Only one change of the shares, or of the number of processors, is made at a time (``scaling``), since a share is part of a sum that must not change
meanwhile.

    size        one change of all shares, in every processor or in none
    grow        new processors start, and take no connections yet. Then one change divides the pool over all; if it fails, the new ones are stopped
    shrink      decided at once. The last processors take no more connections, drain, and are removed in the background; then the pool is divided
                over the others. Until then all have parts of it (``divided``). What fails is tried again by the balancer
    balance     every few seconds shares move to processors whose reads had to wait for memory in the last two intervals. A processor that uses
                little of its share gives half of the rest. No share falls below the largest frame or twice its usage, and the sum stays the size.
                When no processor had to wait for a while, the shares become equal again
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Final

from framegate.control.configuration.units import counted, format_size
from framegate.control.errors import ControlError, FailedPreconditionError, UnavailableError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import Origin, PoolShare, PoolStatus
from framegate.control.steering.transactions import Changed, Transaction, Transactions, check_etag
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.cells import MEMORY_KINDS, CellReader
from framegate.proxy.config.model import MAX_PROCESSORS, ProxyConfig, largest_whole
from framegate.proxy.server.messages import Change

BALANCE_INTERVAL_S: Final = 5.0
BALANCE_LIMIT_S: Final = 120.0
STEP: Final = 64 * 1024
LEAST_MOVE: Final = 256 * 1024
CALM_SAMPLES: Final = 6


def equal_shares(size: int, count: int) -> dict[int, int]:
    """The memory pool divided over the slots 0 to ``count`` - 1; the first gets the remainder."""
    share = size // count
    return {slot: share + (size - share * count if slot == 0 else 0) for slot in range(count)}


def too_small(share: int, largest: int) -> FailedPreconditionError:
    """The error for a share that cannot hold the largest frame."""
    return FailedPreconditionError(
        f"a processor's share of the memory pool would be {format_size(share)}, less than the largest frame of {format_size(largest)}",
        reason="POOL_BELOW_MAX_RECEIVE_SIZE",
        share=str(share),
        max_receive_size=str(largest),
    )


def divided(size: int, staying: Sequence[int], leaving: Sequence[int], largest: int) -> dict[int, int]:
    """The memory pool divided over the slots, in equal shares. Processors that leave have shares until they have drained, for frames still pass
    there: if these would be too small for the largest frame, every processor has so much, together more than the pool for that time. Raises
    FailedPreconditionError: a share would be too small without those that leave.
    """
    if size // len(staying) < largest:
        raise too_small(size // len(staying), largest)
    slots = sorted((*staying, *leaving))
    return dict(zip(slots, equal_shares(size, len(slots)).values(), strict=True)) if size // len(slots) >= largest else dict.fromkeys(slots, largest)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One processor's part of the pool: ``usage`` in bytes, ``refused``: reads that had to wait for memory, since the start."""

    usage: int
    refused: int


def moved_shares(shares: Mapping[int, int], usage: Mapping[int, int], needy: Set[int], floor: int) -> dict[int, int] | None:
    """New shares with the same sum, or None when there is too little to move.

    Args:
        shares: bytes by slot.
        usage: bytes in use by slot.
        floor: the largest frame; no share may be smaller.
    """
    gifts = {slot: _spare(share, usage[slot], floor) for slot, share in shares.items() if slot not in needy}
    total = sum(gifts.values())
    takers = sorted(slot for slot in needy if slot in shares)
    if not takers or total < LEAST_MOVE:
        return None
    part, rest = divmod(total, len(takers))
    gains = {slot: part + (rest if slot == takers[0] else 0) for slot in takers}
    return {slot: share - gifts.get(slot, 0) + gains.get(slot, 0) for slot, share in shares.items()}


def _spare(share: int, usage: int, floor: int) -> int:
    return max(0, share - max(floor, 2 * usage)) // 2 // STEP * STEP


class Need:
    """Finds the needy slots from one sample to the next."""

    def __init__(self) -> None:
        self._before: dict[int, Sample] = {}
        self._once: set[int] = set()
        self._calm = 0

    def update(self, now: Mapping[int, Sample]) -> set[int]:
        """The slots whose reads had to wait in this interval and in the one before."""
        waited = {slot for slot, sample in now.items() if slot in self._before and sample.refused > self._before[slot].refused}
        needy = waited & self._once
        self._before, self._once = dict(now), waited
        self._calm = 0 if waited else self._calm + 1
        return needy

    @property
    def calm(self) -> bool:
        """Whether no read had to wait in the last ``CALM_SAMPLES`` intervals."""
        return self._calm >= CALM_SAMPLES


def _usage(reader: CellReader) -> int:
    return sum(reader.cell("framegate.memory_pool.usage", "frames", kind) for kind in MEMORY_KINDS)


def _share(slot: int, share: int, reader: CellReader) -> PoolShare:
    begun, pending, tls = (reader.cell("framegate.memory_pool.usage", "frames", kind) for kind in MEMORY_KINDS)
    waiting, tap = reader.cell("framegate.memory_pool.waiting", "frames"), reader.cell("framegate.queue.usage", "tap")
    return PoolShare(slot=slot, share=share, begun=begun, pending=pending, tls=tls, tap=tap, waiting=waiting)


class Pool:
    """Changes the size and the number of processors, and balances the shares."""

    def __init__(self, supervisor: Supervisor, transactions: Transactions, log: RowLog, task_monitor: TaskMonitor) -> None:
        self.draining = False  # the proxy drains; the number of processors does not change any more
        # size_origin, processors_origin: who decides the pool's size, and the number of processors
        self.size_origin: Origin = "configuration"
        self.processors_origin: Origin = "configuration"
        self._supervisor = supervisor
        self._transactions = transactions
        self._log = log
        self._task_monitor = task_monitor
        self.scaling: Final = asyncio.Lock()  # held while the shares or the number of processors change
        self._removals: set[asyncio.Task[None]] = set()
        self._need = Need()
        self._balancer = task_monitor.repeat("shares", self._balance, BALANCE_INTERVAL_S, BALANCE_LIMIT_S)

    def close(self) -> None:
        for task in (self._balancer, *self._removals):
            task.cancel()

    @property
    def _desired(self) -> DesiredState:
        return self._supervisor.desired

    @property
    def _size(self) -> int:
        return self._desired.config.memory_pool.size

    def _largest_frame(self) -> int:
        return max(largest_whole(self._desired.config))

    def wanted_slots(self) -> list[int]:
        """The slots with a share of the pool: where processors shall run, or drain before they are removed."""
        return [number for number, slot in sorted(self._supervisor.slots.items()) if slot.wanted and not slot.held]

    def lasting_slots(self) -> list[int]:
        """Those of them where processors shall run."""
        return [number for number in self.wanted_slots() if not self._supervisor.slots[number].leaving]

    @property
    def pending(self) -> tuple[str, ...]:
        """What is decided and not done yet, in words."""
        wanted, lasting = self.wanted_slots(), self.lasting_slots()
        if len(wanted) > len(lasting):
            return (f"{counted(len(wanted) - len(lasting), 'processor')} of {len(wanted)} drain before they are removed",)
        share = sum(self._desired.shares.get(number, 0) for number in lasting)
        return () if share == self._size else (f"the processors have {format_size(share)} of the memory pool of {format_size(self._size)}",)

    def least_share(self) -> int:
        return min(self._desired.shares[number] for number in self.wanted_slots())

    def status(self) -> PoolStatus:
        wanted = set(self.wanted_slots())
        shares = [
            _share(slot, self._desired.shares[slot] if slot in wanted else 0, reader)
            for slot, reader in self._supervisor.cells
            if slot in wanted or _usage(reader)
        ]
        config = self._desired.config
        return PoolStatus(
            kind=config.memory_pool.kind,
            size=self._size,
            shares=tuple(shares),
            processors=len(self.lasting_slots()),
            tap_limit=config.tap.queue_size * len(wanted) if config.tap else 0,
            guaranteed=config.memory_pool.shares,
            size_origin=self.size_origin,
            processors_origin=self.processors_origin,
        )

    # --- shares ------------------------------------------------------------------------------------------------------------------

    async def set_size(self, size: int, origin: Origin = "operator", etag: str = "", *, validate_only: bool = False) -> Changed[PoolStatus]:
        """Resize the memory pool, in bytes, divided over the processors. ``origin`` decides the size from then on. Raises FailedPreconditionError: a
        share would be below the largest maxReceiveSize; others as ``Transactions.update``.
        """

        def checked() -> PoolStatus:
            before = self.status()
            check_etag("memory pool", self._desired.config.node, etag, before.size)
            return before

        if validate_only:
            before = checked()
            self.divided(size)
            return Changed(before, dataclasses.replace(before, size=size))

        async def resize(transaction: Transaction) -> Changed[PoolStatus]:
            async with self.scaling:
                before = checked()
                if origin == "container" and self.size_origin == "operator":
                    return Changed(before, before)  # an operator has set it meanwhile
                with self._decided_anyway(before, transaction):
                    await self._put_shares(self.divided(size), size, transaction)
                self.size_origin = origin
                return Changed(before, self.status())

        return await self._transactions.change("memory pool size", resize)

    @contextlib.contextmanager
    def _decided_anyway(self, before: PoolStatus, transaction: Transaction, processors: int = 0) -> Iterator[None]:
        """An error of a change that is decided states what was changed."""
        try:
            yield
        except UnavailableError as error:
            if transaction.decided:
                after = self.status()
                error.changed = Changed(before, dataclasses.replace(after, processors=processors or after.processors))
            raise

    def divided(self, size: int, more: Sequence[int] = ()) -> dict[int, int]:
        """A pool of so many bytes, divided over the processors that there are, and ``more``; see ``divided``."""
        wanted, lasting = self.wanted_slots(), self.lasting_slots()
        return divided(size, [*lasting, *more], [number for number in wanted if number not in lasting], self._largest_frame())

    def _check_shares(self, shares: Mapping[int, int]) -> None:
        if min(shares.values()) < self._largest_frame():
            raise too_small(min(shares.values()), self._largest_frame())

    async def _put_shares(self, shares: dict[int, int], size: int, transaction: Transaction | None = None, count: int = 0) -> None:
        """Put shares in force, with the size that they are of; and the number of processors, unless it is 0."""

        def edit(config: ProxyConfig) -> ProxyConfig:
            return dataclasses.replace(config, memory_pool=dataclasses.replace(config.memory_pool, size=size))

        def commit(desired: DesiredState) -> None:
            desired.shares = dict(shares)
            if count:
                desired.config = dataclasses.replace(desired.config, processors=count)

        decided = (transaction or Transaction()).decide
        await self._supervisor.change_config(
            edit, lambda: self._check_shares(shares), decided, further=lambda slot: Change(share=shares[slot]), commit=commit
        )

    async def _balance(self) -> None:
        slots = set(self.wanted_slots())
        samples = {
            slot: Sample(_usage(reader), reader.cell("framegate.memory_pool.refused", "frames"))
            for slot, reader in self._supervisor.cells
            if slot in slots
        }
        needy = self._need.update(samples)
        if self.scaling.locked() or self.draining or not slots:
            return
        stuck = slots - set(self.lasting_slots())
        if stuck:
            if not self._removals:
                self._remove(stuck)
            return
        async with self.scaling:
            await self._move_shares(needy, {slot: sample.usage for slot, sample in samples.items()}, calm=self._need.calm)

    async def _move_shares(self, needy: set[int], usage: dict[int, int], *, calm: bool) -> None:
        now = {slot: self._desired.shares[slot] for slot in self.wanted_slots()}
        try:
            equal = self.divided(self._size)
            due = now != equal and (calm or sum(now.values()) != self._size or self._desired.shares.keys() != now.keys())
            shares = equal if due else moved_shares(now, usage, needy, self._largest_frame())
            if shares is None:
                return
            await self._put_shares(shares, self._size)
        except ControlError as error:
            self._log.write("pool_not_moved", level="warning", error=str(error))
        else:
            self._log.write("pool_moved", shares=shares, needy=sorted(needy))

    # --- processors --------------------------------------------------------------------------------------------------------------

    async def set_processors(self, count: int, origin: Origin = "operator", etag: str = "", *, validate_only: bool = False) -> Changed[PoolStatus]:
        """Start or drain and stop processors until ``count`` (at least 1) run. Growing returns when the new ones are ready; shrinking
        when the drained ones have ended or their drain timeout has passed. ``origin`` decides the number from then on. Others as ``set_size``.
        """

        def checked() -> PoolStatus:
            if self.draining:
                raise FailedPreconditionError("the proxy drains", reason="DRAINING")
            before = self.status()
            check_etag("processor pool", self._desired.config.node, etag, before.processors)
            return before

        if validate_only:
            before = checked()
            divided(self._size, range(count), (), self._largest_frame())
            return Changed(before, dataclasses.replace(before, processors=count))

        async def scale(transaction: Transaction) -> Changed[PoolStatus]:
            removal = None
            async with self.scaling:
                before = checked()
                if origin == "container" and self.processors_origin == "operator":
                    return Changed(before, before)  # an operator has set it meanwhile
                with self._decided_anyway(before, transaction):
                    if count > before.processors:
                        await self._grow(count, transaction)
                self.processors_origin = origin
                if count < before.processors:
                    transaction.decide()
                    self._desired.config = dataclasses.replace(self._desired.config, processors=count)
                    removal = self.shrink(count)
            if removal is not None:
                with self._decided_anyway(before, transaction, count):
                    await asyncio.shield(removal)
            return Changed(before, dataclasses.replace(self.status(), processors=count))  # others may have changed it meanwhile

        return await self._transactions.change("number of processors", scale)

    async def _grow(self, count: int, transaction: Transaction) -> None:
        more = await self.start_more(count)
        try:
            await self._put_shares(self.divided(self._size, more), self._size, transaction, count)
        finally:
            await self.settle_more(more, decided=transaction.decided)

    async def start_more(self, count: int) -> list[int]:
        """Start processors until there are so many. They take no connections, and have no part of the pool, before ``settle_more``, which is called
        in any case. While ``scaling`` is held. Returns their slots. Raises UnavailableError: one could not start; none is added.
        FailedPreconditionError: too many others still drain.
        """
        free = [number for number in range(MAX_PROCESSORS) if number not in self._supervisor.slots]
        more = free[: max(0, count - len(self.lasting_slots()))]
        if len(self.lasting_slots()) + len(more) < count:
            text = f"no processor was added: {self.pending[0]}, and there can be {MAX_PROCESSORS} at a time"
            raise FailedPreconditionError(text, reason="PROCESSORS_DRAIN")
        self._desired.shares = {**self._desired.shares, **dict.fromkeys(more, self._largest_frame())}
        try:
            await self._supervisor.start_slots(more, held=True)
        except BaseException as error:
            self._forget_shares(more)
            if isinstance(error, ControlError) and error.reason == "PROCESSOR_START_FAILED":
                raise UnavailableError(f"no processor was added: {error}", reason=error.reason) from error
            raise
        return more

    async def settle_more(self, more: Sequence[int], *, decided: bool) -> None:
        """Let the processors of ``start_more`` take connections, if that was decided, or stop them again."""
        if decided:
            self._supervisor.release_slots(more)
        else:
            await self._supervisor.discard_slots(more)
            self._forget_shares(more)

    def _forget_shares(self, slots: Collection[int]) -> None:
        self._desired.shares = {slot: share for slot, share in self._desired.shares.items() if slot not in slots}

    def shrink(self, count: int) -> asyncio.Task[None]:
        """Let the last processors take no more connections, so that so many stay; they drain, and are removed, in the background. Returns: Ends when
        they are gone, and their memory is divided. Raises UnavailableError: it could not be divided yet (SHARES_PENDING).
        """
        return self._remove(self.lasting_slots()[count:])

    def _remove(self, slots: Collection[int]) -> asyncio.Task[None]:
        self._supervisor.leave_slots(slots)
        removal = asyncio.create_task(self._drain_and_remove(slots))
        self._removals.add(removal)
        removal.add_done_callback(self._removed)
        return removal

    async def _drain_and_remove(self, slots: Collection[int]) -> None:
        await self._supervisor.remove_slots(slots, self._desired.config.drain.timeout_ms)
        async with self.scaling:
            try:
                await self._put_shares(self.divided(self._size), self._size)
            except ControlError as error:
                self._log.write("pool_not_moved", level="warning", error=str(error))
                text = "the processors are gone, but the memory of those that are gone is not divided among the others yet"
                raise UnavailableError(f"{text}: {error}", reason="SHARES_PENDING", **error.metadata) from error

    def _removed(self, removal: asyncio.Task[None]) -> None:
        self._removals.discard(removal)
        error = None if removal.cancelled() else removal.exception()
        if error is not None and not isinstance(error, ControlError):
            self._task_monitor.failed("shares", error)
