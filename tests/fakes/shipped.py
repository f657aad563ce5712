"""A tap directory whose shipper is driven by hand, and the store as a folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from framegate.proxy.tap.completeness import Verdict
from framegate.proxy.tap.fleet import Minute, Node, minutes, verify_node
from framegate.proxy.tap.ledger import LEDGER_NAME, Shipped, read_ledger
from framegate.proxy.tap.log_reader import end_offset
from framegate.proxy.tap.record import FLAG_AT_MOST
from framegate.proxy.tap.shipper import Shipper, Told, ToldStream
from framegate.proxy.tap.store import Store, store_at
from tests.fakes.kept_tap import START, KeptTap
from tests.fakes.tap_log import FakeProcessor

MINUTE_NS = 60_000_000_000


class FaultyStore(Store):
    """A store whose next calls of a kind fail: ``faults`` has errors, or functions to call before, by the method's name."""

    def __init__(self, root: str) -> None:
        made = store_at(root, create=True)
        super().__init__(root, made._base, made._prefix)
        self.faults: dict[str, list[Any]] = {}
        self.calls: list[str] = []

    def _meet(self, method: str) -> None:
        self.calls.append(method)
        fault = self.faults.get(method, [])[:1]
        del self.faults.get(method, [])[:1]
        for found in fault:
            if isinstance(found, Exception):
                raise found
            if found is not None:
                found()

    def replace(self, name: str, chunks: Iterable[bytes | memoryview], version: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Of segments, it is called ``create``."""
        method = "replace" if name == LEDGER_NAME else "create"
        self._meet(method)
        found = super().replace(name, chunks, version)
        self._meet(f"{method}d")
        return found


class ShippedTap:
    """A tap of the node ``edge``, and its store below ``root``."""

    def __init__(self, folder: Path, node: str = "edge", url: str = "") -> None:
        """``url``: of the fleet; a folder beside this one unless it is given."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.tap = KeptTap(folder)
        self.url = url or f"file://{folder}.store"
        self.root = f"{self.url}/{node}"
        # now_ns, now_s: the machine's clocks
        self.now_ns = START + 600 * MINUTE_NS
        self.now_s = 1000.0
        self.slept: list[float] = []  # what the shipper slept
        self.store = FaultyStore(self.root)
        self.restart()

    def restart(self, **options: Any) -> None:
        self.shipper = Shipper(
            str(self.folder),
            self.store,
            interval_ms=1000,
            clock_ns=lambda: self.now_ns,
            monotonic_s=lambda: self.now_s,
            sleep=self.slept.append,
            **options,
        )

    def look(self, streams: Mapping[str, tuple[int, int]] | None = None) -> bool:
        """A pass; ``streams``: what control tells of them."""
        told = None if streams is None else Told(self.now_ns, self.now_s, {name: ToldStream(*facts) for name, facts in streams.items()})
        return self.shipper.look(told, last=True)

    def later(self, seconds: float, clock: float | None = None) -> None:
        """Time passes; ``clock``: as much on the wall clock."""
        self.now_s += seconds
        self.now_ns += int((seconds if clock is None else clock) * 1e9)

    def die(self, processor: FakeProcessor, frames: int, node: str = "edge") -> None:
        """A processor has died, and may have lost some frames."""
        processor.close()
        recovery = f"{node}.recovery.{processor.stream.rsplit('.', 1)[1]}"
        self.tap.recover(processor, FLAG_AT_MOST, frames, node=node)
        self.tap.ledger.born(recovery, [], START)
        for stream in (processor.stream, recovery):
            self.tap.ledger.ended(stream, end_offset(str(self.folder), stream), START, settled=True)

    def leave(self) -> None:
        """Framegate has ended."""
        self.tap.lock.close()

    @property
    def shipped(self) -> Shipped:
        found = read_ledger(self.root).shipped
        assert found is not None
        return found

    def until(self, stream: str) -> float:
        """Until when a stream is complete, in minutes after the start; 0: not known."""
        found = self.shipped.streams[stream][1]
        return (found - START) / MINUTE_NS if found else 0.0

    def objects(self) -> list[Path]:
        return sorted(path for path in Path(self.root.removeprefix("file://")).rglob("*") if path.is_file())

    def verify(self) -> tuple[Node, Verdict, list[Minute]]:
        node, verdict = verify_node(self.root, self.now_ns, sleep=self.slept.append)
        return node, verdict, list(minutes([(node, verdict)]))
