"""The memory pool and the number of processors. The pool is divided over the slots; the shares follow the number of processors and their need.

Only one change of the shares is made at a time (``scaling``), since a share is part of a sum that must not change meanwhile; and only one change of
the number of processors (``_counting``).

    size        one change of all shares, in every processor or in none
    grow        the old processors give up part of their shares, and the new ones start. It is decided when all are ready, and taken back before
    shrink      it is decided when the first processor is told to drain. While processors drain they keep their shares, which a change of the size
                changes too
    balance     every few seconds shares move to processors whose reads had to wait for memory in the last two intervals. A processor that uses
                little of its share gives half of the rest. No share falls below the largest frame or twice its usage, and the sum stays the size.
                When no processor had to wait for a while, the shares become equal again
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Set
from typing import Final

from framegate.control.configuration.units import format_size
from framegate.control.errors import ControlError, FailedPreconditionError, UnavailableError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import Origin, PoolShare, PoolStatus
from framegate.control.steering.transactions import Changed, Transaction, Transactions, check_etag
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.cells import MEMORY_KINDS, CellReader
from framegate.proxy.config.model import ProxyConfig, largest_whole
from framegate.proxy.server.messages import Change

__all__ = ["Need", "Pool", "Sample", "equal_shares", "moved_shares", "too_small"]

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
        needy: slots whose reads had to wait.
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
    """Changes the size and the number of processors, and balances the shares.

    Attributes:
        draining: the proxy drains; the number of processors does not change any more.
        size_origin, processors_origin: who decides the pool's size, and the number of processors.
        scaling: held while the shares change.
    """

    def __init__(self, supervisor: Supervisor, transactions: Transactions, log: RowLog, task_monitor: TaskMonitor) -> None:
        self.draining = False
        self.size_origin: Origin = "configuration"
        self.processors_origin: Origin = "configuration"
        self._supervisor = supervisor
        self._transactions = transactions
        self._log = log
        self.scaling: Final = asyncio.Lock()
        self._counting = asyncio.Lock()
        self._need = Need()
        self._balancer = task_monitor.repeat("shares", self._balance, BALANCE_INTERVAL_S, BALANCE_LIMIT_S)

    def close(self) -> None:
        """End the balancer."""
        self._balancer.cancel()

    @property
    def _desired(self) -> DesiredState:
        return self._supervisor.desired

    @property
    def _size(self) -> int:
        return self._desired.config.memory_pool.size

    def _largest_frame(self) -> int:
        return max(largest_whole(self._desired.config))

    def wanted_slots(self) -> list[int]:
        """The slots where processors shall run."""
        return [number for number, slot in sorted(self._supervisor.slots.items()) if slot.wanted]

    def least_share(self) -> int:
        """The smallest share of a slot where a processor shall run."""
        return min(self._desired.shares[number] for number in self.wanted_slots())

    def status(self) -> PoolStatus:
        """Size, usage and shares of the memory pool."""
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
            processors=len(wanted),
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
            self._check_shares(equal_shares(size, before.processors))
            return Changed(before, dataclasses.replace(before, size=size))

        async def resize(transaction: Transaction) -> Changed[PoolStatus]:
            async with self.scaling:
                before = checked()
                if origin == "container" and self.size_origin == "operator":
                    return Changed(before, before)  # an operator has set it meanwhile
                with self._decided_anyway(before, transaction):
                    await self._put_shares(equal_shares(size, before.processors), size, transaction)
                self.size_origin = origin
                return Changed(before, self.status())

        return await self._transactions.change("memory pool size", resize)

    @contextlib.contextmanager
    def _decided_anyway(self, before: PoolStatus, transaction: Transaction) -> Iterator[None]:
        """An error of a change that is decided states what was changed."""
        try:
            yield
        except UnavailableError as error:
            if transaction.decided:
                error.changed = Changed(before, self.status())
            raise

    def _check_shares(self, shares: Mapping[int, int]) -> None:
        if min(shares.values()) < self._largest_frame():
            raise too_small(min(shares.values()), self._largest_frame())

    async def _put_shares(self, shares: dict[int, int], size: int, transaction: Transaction | None = None) -> None:

        def edit(config: ProxyConfig) -> ProxyConfig:
            return dataclasses.replace(config, memory_pool=dataclasses.replace(config.memory_pool, size=size))

        def commit(desired: DesiredState) -> None:
            desired.shares = dict(shares)

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
        if self.scaling.locked() or self._counting.locked() or self.draining or not slots:
            return
        async with self.scaling:
            await self._move_shares(needy, {slot: sample.usage for slot, sample in samples.items()}, calm=self._need.calm)

    async def _move_shares(self, needy: set[int], usage: dict[int, int], *, calm: bool) -> None:
        now = {slot: self._desired.shares[slot] for slot in self.wanted_slots()}
        equal = equal_shares(self._size, len(now))
        shares = equal if calm and now != equal else moved_shares(now, usage, needy, self._largest_frame())
        if shares is None:
            return
        try:
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
            self._check_shares(equal_shares(self._size, count))
            return Changed(before, dataclasses.replace(before, processors=count))

        async def scale(transaction: Transaction) -> Changed[PoolStatus]:
            async with self._counting:
                before = checked()
                if origin == "container" and self.processors_origin == "operator":
                    return Changed(before, before)  # an operator has set it meanwhile
                if count > before.processors:
                    async with self.scaling:
                        await self._grow(before.processors, count, transaction)
                self.processors_origin = origin
                if count < before.processors:
                    transaction.decide()
                    with self._decided_anyway(before, transaction):
                        await self._shrink(before.processors, count)
                return Changed(before, self.status())

        return await self._transactions.change("number of processors", scale)

    async def _grow(self, now: int, count: int, transaction: Transaction) -> None:
        before = {slot: self._desired.shares[slot] for slot in self.wanted_slots()}
        try:
            await self._put_shares(equal_shares(self._size, count), self._size)
            await self._supervisor.start_slots(range(now, count))
        except BaseException as error:
            await self._restore(before)
            if isinstance(error, ControlError) and error.reason == "PROCESSOR_START_FAILED":
                raise UnavailableError(f"no processor was added: {error}", reason=error.reason) from error
            raise
        transaction.decide()
        self._set_count(count)

    async def _restore(self, before: dict[int, int]) -> None:
        """Give the old processors their former shares again. No processor can refuse a larger share."""
        if self._desired.shares == before:
            return
        try:
            await self._put_shares(before, self._size)
        except ControlError as error:
            self._log.write("pool_not_moved", level="error", error=str(error))

    async def _shrink(self, now: int, count: int) -> None:
        await self._supervisor.remove_slots(range(count, now), self._desired.config.drain.timeout_ms)
        self._set_count(count)
        try:
            async with self.scaling:
                await self._put_shares(equal_shares(self._size, count), self._size)
        except ControlError as error:
            text = f"the pool has {count} of its processors, but the memory of those that are gone is not divided among them yet: {error}"
            raise UnavailableError(text, reason="SHARES_PENDING", **error.metadata) from error

    def _set_count(self, count: int) -> None:
        self._desired.config = dataclasses.replace(self._desired.config, processors=count)
