"""``framegate tap`` for logs in an object store: the nodes of a fleet, its minutes, and ``tap ship``."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import time
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from framegate.control.cli.output import age_text, counted, first_of, print_json, print_line, print_note, print_table, size_text
from framegate.control.cli.tap_records import moment_text
from framegate.control.cli.tap_verdict import EXIT_LOST, MANY_ROWS, exit_code, print_ends, print_rows, verdict_rows
from framegate.proxy.tap.acceptance import Accepted
from framegate.proxy.tap.completeness import ALWAYS, Verdict
from framegate.proxy.tap.consumer import ConsumerInUseError, claim_consumer
from framegate.proxy.tap.fleet import FOREVER_NS, Minute, Node, minutes, node_at, nodes_of, verify_node
from framegate.proxy.tap.ledger import Span
from framegate.proxy.tap.log_reader import streams
from framegate.proxy.tap.shipper import CONSUMER, Shipper
from framegate.proxy.tap.store import store_at

_AT_ONCE: Final = 16  # Nodes that are read at a time
_WAITING: Final = 3  # names of nodes in a row of a minute


class Fleet(NamedTuple):
    """The result of ``verify_fleet``."""

    nodes: list[Node]
    minutes: list[Minute]
    verdict: Verdict


def list_nodes(url: str) -> list[Node]:
    """The nodes below a URL, by name. Raises OSError."""
    now_ns = time.time_ns()
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda root: node_at(root, now_ns), nodes_of(url)))


def print_nodes(nodes: list[Node], output: str) -> None:
    """Print one row for each node."""
    if output == "json":
        print_json([_as_dict(node) for node in nodes])
        return
    print_table(
        ("NODE", "STATE", "HEARD", "COMPLETE UNTIL", "STREAMS", "WRITTEN", "SHIPPED"),
        (
            (node.name, node.state, _ago(node.heard_ns), _until(node), node.streams, node.written, size_text(node.shipped))
            for node in nodes
        ),
    )  # fmt: skip


def _as_dict(node: Node) -> dict[str, object]:
    times = {"began_time": node.began_ns, "heard_time": node.heard_ns, "until_time": 0 if node.until_ns == FOREVER_NS else node.until_ns}
    facts = {key: value for key, value in dataclasses.asdict(node).items() if not key.endswith("_ns") and key != "silent"}
    return {**facts, "state": node.state, **{name: moment_text(at_ns) if at_ns else None for name, at_ns in times.items()}}


def _ago(at_ns: int) -> str:
    return f"{age_text(max(0.0, (time.time_ns() - at_ns) / 1e9))} ago" if at_ns else "never"


def _until(node: Node) -> str:
    return "-" if node.until_ns == FOREVER_NS or not node.until_ns else moment_text(node.until_ns)[:19].replace("T", " ")


def verify_fleet(url: str, gone: Collection[str] = (), within: Span = ALWAYS) -> Fleet:
    """Read every node below a URL, and judge the fleet's minutes. ``gone``: as for ``minutes``; ``within``: as for ``verify``; nodes that were heard
    behind it are not silent. Raises OSError.
    """
    now_ns = time.time_ns()
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda root: verify_node(root, now_ns, within=within), nodes_of(url)))
    nodes = [dataclasses.replace(node, silent=node.silent and node.name not in gone and node.until_ns < within[1]) for node, _ in found]
    rows = [row for _, verdict in found for row in verdict.rows]
    faults = [fault if fault.startswith(node.name) else f"{node.name}: {fault}" for node, verdict in found for fault in verdict.faults]
    judged = list(minutes(found, gone))
    sound = bool(rows) and not faults and not _silent(nodes) and all(minute.state != "lost" for minute in judged)
    ends = sum((verdict.lost_ends for _, verdict in found), collections.Counter[str]())
    return Fleet(nodes, judged, Verdict(rows, faults, sound, lost_ends=ends))


def _silent(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.state == "silent"]


def fleet_exit_code(fleet: Fleet) -> int:
    """As for a directory; 1, too, if a node fell silent, or data was deleted before it was shipped."""
    code = exit_code(fleet.verdict, Accepted({}, {}))
    exact = all(minute.exact for minute in fleet.minutes)
    return 1 if code == EXIT_LOST and (_silent(fleet.nodes) or not exact) else code


def print_fleet(fleet: Fleet, summary: bool | None, output: str) -> None:
    """Print faults, silent nodes, the rows and minutes that are not complete, then the conclusion."""
    verdict, none = fleet.verdict, Accepted({}, {})
    if output == "json":
        judged = []
        for minute in fleet.minutes:
            facts = dataclasses.asdict(minute)
            judged.append({"minute": moment_text(facts.pop("window_ns")), **facts})
        nodes = [_as_dict(node) for node in fleet.nodes]
        windows = verdict_rows(verdict, none)
        told = {"complete": verdict.complete, "faults": verdict.faults, "lost_ends": dict(verdict.lost_ends)}
        print_json({**told, "nodes": nodes, "minutes": judged, "windows": windows})
        return
    for fault in verdict.faults:
        print_line(f"fault: {fault}")
    for node in _silent(fleet.nodes):
        print_line(f"silent: {node.name} was heard {_ago(node.heard_ns)}; its frames from {_until(node)} UTC on are not known")
    print_rows(verdict, True, none)
    many = len(fleet.minutes) > MANY_ROWS if summary is None else summary
    print_table(
        ("MINUTE", "STATE", "SEEN", "LOST", "AT MOST", "WHY", "NOT HEARD SINCE"),
        (
            (moment_text(minute.window_ns)[:16].replace("T", " "), minute.state, minute.seen, minute.lost, minute.at_most,
             ", ".join(minute.reasons) or "-", first_of(minute.waiting, _WAITING) or "-")
            for minute in fleet.minutes if not many or minute.state != "complete"
        ),
    )  # fmt: skip
    print_ends(verdict)
    states = [minute.state for minute in fleet.minutes]
    numbers = ", ".join(f"{states.count(state):,} {state}" for state in ("complete", "lost", "open") if state in states)
    word = "not complete"
    if verdict.complete:
        word = "complete except for the open minutes" if "open" in states else "complete"
    elif fleet_exit_code(fleet) == EXIT_LOST:
        word = "frames are lost, and the log says exactly how many"
    print_line(f"{word}: {counted(len(fleet.nodes), 'node')}; minutes: {numbers or 'none, so completeness is not proved'}")


def node_names(directory: str) -> list[str]:
    """The nodes whose streams are in a tap directory."""
    return sorted({name.rsplit(".", 2)[0] for name in streams(directory)})


def ship(directory: str, url: str, bandwidth: int) -> bool:
    """Ship a directory once. Returns False, after a message, if another process ships it. Raises OSError."""
    shipper = Shipper(directory, store_at(url, create=True), bandwidth=bandwidth)
    with contextlib.ExitStack() as claimed:
        try:
            claimed.enter_context(claim_consumer(directory, CONSUMER))
        except ConsumerInUseError:
            print_note(f"another process ships {directory}")
            return False
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            # mounted read-only, or of another user: what two shippers send is the same
        while not shipper.look(None, last=True):
            time.sleep(1)
    print_note(f"{counted(shipper.sent, 'segment')} sent to {url}, {size_text(shipper.sent_bytes)}")
    return True
