"""Large replies that stay in the handler process until there is memory for them. Each needs an admission slot, like a large frame that passes whole.

The slot is requested when the reply is announced. When it is granted, the handler process is asked for the reply. The slot is released when the bytes
of the reply are booked at their destination.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.admission_slots import AdmissionSlot, SlotOwner
from framegate.proxy.network.memory_pool import MemoryPool, with_overhead
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.handler_wire import WireError


class _DeferredReply(SlotOwner):
    """One deferred reply. It holds no memory here before it arrives, so it never blocks others."""

    def __init__(self, ask: Callable[[int], None], key: int) -> None:
        self._ask: Final = ask
        self._key: Final = key

    def slot_granted(self) -> None:
        self._ask(self._key)

    def has_no_input(self) -> bool:
        return False  # it was requested, and will arrive

    def is_blocked(self) -> bool:
        return False


class DeferredReplies:
    """The deferred replies of one handler process. A ``key`` is twice a connection's id, plus the direction. ``ask``: requests the reply of a key
    from the handler process.
    """

    def __init__(self, ask: Callable[[int], None], pool: MemoryPool, selector: Selector) -> None:
        self._ask: Final = ask
        self._pool: Final = pool
        self._selector: Final = selector
        self._slots: Final[dict[int, AdmissionSlot]] = {}
        self._came: Final[list[AdmissionSlot]] = []  # of the replies that this read completed

    def announce(self, key: i64, size: i64) -> None:
        """A reply waits in the process. Raises WireError: another reply of its connection and direction waits."""
        if key in self._slots:
            raise WireError(f"connection {key >> 1} has two replies that wait in one direction")
        needed = with_overhead(size)
        slot = self._slots[int(key)] = AdmissionSlot(self._pool.answers, _DeferredReply(self._ask, key), needed)
        if slot.ask(needed):
            self._ask(key)
        else:
            self._selector.watch_slots()

    def came(self, key: i64, size: i64) -> None:
        """A long reply has arrived. Raises WireError: it was not requested."""
        slot = self._slots.get(int(key))
        if slot is None or not slot.is_in:
            raise WireError(f"a reply of {size} bytes, which was not asked for")
        del self._slots[int(key)]
        self._came.append(slot)

    def forget(self, connection: i64) -> None:
        """The replies of a connection are not needed any more. One that was requested still arrives, and keeps its slot until then."""
        if not self._slots:
            return
        for key in (2 * connection, 2 * connection + 1):
            slot = self._slots.get(int(key))
            if slot is not None and not slot.is_in:
                del self._slots[int(key)]
                slot.leave()

    def end_slots(self) -> None:
        """The replies that arrived are booked at their destination: release their slots."""
        while self._came:
            self._came.pop().leave()

    def drop(self) -> None:
        """The process is gone: no reply arrives any more."""
        self._came.extend(self._slots.values())
        self._slots.clear()
        self.end_slots()
