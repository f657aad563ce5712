"""A fleet's logs in an object store: its nodes, and what is complete, by minute.

A minute of the fleet has one of three states. *lost*: frames of a node are lost, or may be; with their number and the reasons. *open*: a node has not
been heard since, so it is not known. *complete*: neither. Nodes that ended in order, and nodes that were never heard, are not waited for.
"""

import dataclasses
import time
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from framegate.proxy.tap.completeness import ALWAYS, Verdict, WindowRow, verify
from framegate.proxy.tap.expected import expected_end
from framegate.proxy.tap.ledger import SILENT_INTERVALS, Ledger, Shipped, Span, content_of, read_ledger
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.log_segments import CLOCKS_NS
from framegate.proxy.tap.record import WINDOW_NS
from framegate.proxy.tap.store import COPIES, node_of, store_at

FOREVER_NS: Final = 1 << 62
_SILENT_LEAST_NS: Final = 30_000_000_000
LOST: Final = ("lost", "at_most", "unknown", "missing", "cut")


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node in the store. Times are of the node's clock, since 1970."""

    name: str  # of its folder
    root: str  # its URL, which readers take like a directory
    began_ns: int = 0  # when its first stream began; 0: not known
    heard_ns: int = 0  # when it was last heard; 0: never
    until_ns: int = 0  # before this time, all its frames are in the store, or what is known of them; ``FOREVER_NS``: it ended in order
    silent: bool = False  # it should have been heard since
    streams: int = 0  # number of its streams
    written: int = 0  # those without an end
    shipped: int = 0  # bytes in the store
    fault: str = ""  # why that is not known, in words; empty when it is

    @property
    def state(self) -> str:
        """``running``, ``stopped`` (in order), ``silent`` or ``unknown``."""
        return "unknown" if self.fault else "stopped" if self.until_ns == FOREVER_NS else "silent" if self.silent else "running"


@dataclasses.dataclass(frozen=True, slots=True)
class Minute:
    """A minute of a fleet."""

    window_ns: int  # where it begins, wall clock
    state: str  # ``complete``, ``lost`` or ``open``
    # seen, lost, at_most: frames, of all nodes. Frames that are missing without a row about them count as lost.
    seen: int
    lost: int
    at_most: int
    exact: bool  # no other frames are lost, as far as nodes were heard
    reasons: list[str]  # why frames are lost, in words
    waiting: list[str]  # nodes that have not been heard since; also when it is ``lost``


def nodes_of(url: str) -> list[str]:
    """The URLs of the nodes below a prefix; of the node alone, if it is one. One request for 1,000 nodes. Raises OSError: the store cannot be
    read.
    """
    if content_of(url) is not None:
        return [url.rstrip("/")]
    return [f"{url.rstrip('/')}/{name}" for name in store_at(url).folders()]


def node_at(root: str, now_ns: int) -> Node:
    """What the stored ledger says of a node: one request. ``root``: its URL. ``now_ns``: wall clock. Raises OSError: the store cannot be read."""
    name, ledger = node_of(root), read_ledger(root)
    shipped = ledger.shipped
    if shipped is None:
        return Node(name, root, fault="there is no ledger of a shipper, so it is not known what was shipped")
    began = [stream_record.born_ns for stream_record in ledger.streams.values() if not stream_record.recovery]
    unfinished = _unfinished(ledger)
    fault = f"the ledger is damaged: {ledger.damage}" if ledger.damage else place_fault(root, shipped)
    if shipped.heard_ns - now_ns > CLOCKS_NS:
        fault = fault or f"it says that it was heard {(shipped.heard_ns - now_ns) / 1e9:,.0f} s from now: its clock, or the one here, is wrong"
    silent_ns = max(SILENT_INTERVALS * shipped.interval_ms * 1_000_000, _SILENT_LEAST_NS)
    return Node(
        name,
        root,
        min(began, default=shipped.at_ns),
        shipped.heard_ns,
        until_of(ledger),
        not shipped.stopped and now_ns - shipped.heard_ns > silent_ns,
        len(ledger.streams.keys() | shipped.streams.keys()),
        len(unfinished),
        sum(end for end, _ in shipped.streams.values()),
        fault,
    )


def place_fault(root: str, shipped: Shipped) -> str:
    """What is wrong with where a stored ledger is, in words; "": nothing."""
    moved = shipped.node and shipped.node != node_of(root)
    return f"its ledger was written for the node {shipped.node}" if moved else ""


def until_of(ledger: Ledger) -> int:
    """``until_ns`` of ``Node``, by a stored ledger; 0: not known."""
    if ledger.shipped is None:
        return 0
    return FOREVER_NS if ledger.shipped.stopped else min([ledger.shipped.at_ns, *(_until(ledger, stream) for stream in _unfinished(ledger))])


def _unfinished(ledger: Ledger) -> list[str]:
    """Streams that may go on."""
    names = ledger.streams.keys() | (ledger.shipped.streams.keys() if ledger.shipped else set())
    return sorted(name for name in names if expected_end(ledger.streams.get(name)) is None)


def _until(ledger: Ledger, stream: str) -> int:
    stream_record = ledger.streams.get(stream)
    assert ledger.shipped is not None, "it is of a store"
    known_ns = ledger.shipped.streams.get(stream, (0, 0))[1]
    return known_ns or (0 if stream_record is None else min(stream_record.born_ns, ledger.shipped.at_ns))


def verify_node(root: str, now_ns: int, sleep: Callable[[float], object] = time.sleep, within: Span = ALWAYS) -> tuple[Node, Verdict]:
    """``completeness.verify`` for a node in the store. What the shipper says is read before the segments are listed, so they must be there. Raises
    OSError: the store cannot be read.
    """
    COPIES.forget(root)  # what was damaged since is found
    node = node_at(root, now_ns)
    ledger = read_ledger(root)
    verdict = verify(root, sleep=sleep, within=within)
    faults, doubts = [*verdict.faults], [*verdict.doubts]
    if node.fault and node.fault not in faults:
        faults.append(node.fault)
    for stream, (end, _) in sorted(ledger.shipped.streams.items() if ledger.shipped else ()):
        listed = segments(root, stream)
        found = listed[-1].limit if listed else 0
        if found < end:
            faults.append(f"{stream}: it was shipped up to {end}, and is there up to {found} only")
            doubts.append((max((row.last_window_ns for row in verdict.rows if row.stream == stream), default=0), FOREVER_NS))
    return node, dataclasses.replace(verdict, faults=faults, complete=verdict.complete and not faults, doubts=doubts)


def minutes(found: Iterable[tuple[Node, Verdict]], gone: Container[str] = ()) -> Iterator[Minute]:
    """The minutes from the first to the last that any node has rows about. ``found``: of ``verify_node``. ``gone``: names of nodes that no longer
    exist. What they had not shipped when they were last heard is lost, and later minutes do not wait for them.
    """
    found = list(found)
    rows: dict[int, list[WindowRow]] = {}
    for _, verdict in found:
        for row in verdict.rows:
            for number in range(row.windows):
                rows.setdefault(row.window_ns // WINDOW_NS + number, []).append(row)
    for window in range(min(rows), max(rows) + 1) if rows else ():
        end_ns = (window + 1) * WINDOW_NS
        here = rows.get(window, [])
        bad = [row for row in here if row.state in LOST]
        late = [node for node, _ in found if node.fault or node.until_ns < end_ns]
        unsure = {node.name: node.name for node in late} | {row.stream: row.stream.rsplit(".", 2)[0] for row in here if row.state == "open"}
        waiting = sorted(name for name, node in unsure.items() if node not in gone)
        heard = {node.name for node, _ in found if node.fault or window * WINDOW_NS <= node.heard_ns}
        taken = {node for node in unsure.values() if node in gone and node in heard}
        faulty = {node.name for node, verdict in found if any(first < end_ns and window * WINDOW_NS <= last for first, last in verdict.doubts)}
        yield Minute(
            window * WINDOW_NS,
            "lost" if bad or taken else "open" if waiting else "lost" if faulty else "complete",
            sum(row.seen for row in here),
            sum(row.lost + row.shared + abs(row.missing) for row in bad),
            sum(row.at_most for row in bad),
            not taken and not faulty and all(row.state == "lost" and not row.cut for row in bad),
            sorted(
                {
                    *(reason for row in bad for reason in _reasons(row)),
                    *(f"{name} is gone" for name in taken),
                    *(f"faults of {name}" for name in faulty),
                }
            ),
            waiting,
        )


def _reasons(row: WindowRow) -> list[str]:
    """Why frames of a row are lost."""
    words = [*row.reasons]
    if row.missing:
        words.append("missing")
    if row.cut or row.state == "cut":
        words.append("deleted before it was shipped")
    return words or [row.state]
