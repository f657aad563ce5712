"""A fleet in a store: its nodes, and its minutes. Damage of its objects: ``tests/proxy/pipeline/test_store_damage.py``."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framegate.proxy.tap.fleet import FOREVER_NS, minutes, node_at, nodes_of, verify_node
from framegate.proxy.tap.log_segments import CLOCKS_NS
from tests.fakes.kept_tap import START, in_segments
from tests.fakes.shipped import MINUTE_NS, ShippedTap


@pytest.fixture
def others(edge: ShippedTap, tmp_path: Path) -> Iterator[Callable[[str], ShippedTap]]:
    """Makes further nodes."""
    found: list[ShippedTap] = []

    def make(node: str) -> ShippedTap:
        found.append(ShippedTap(tmp_path / node, node, edge.url))
        return found[-1]

    yield make
    for made in found:
        made.leave()


def states(*taps: ShippedTap) -> list[str]:
    found = [verify_node(tap.root, tap.now_ns) for tap in taps]
    return [minute.state for minute in minutes(found)]


def test_a_prefix_has_nodes_and_a_node_is_itself(edge: ShippedTap, others: Callable[[str], ShippedTap], tmp_path: Path) -> None:
    edge.look()
    others("b").look()
    assert nodes_of(edge.url) == [f"{edge.url}/b", edge.root]
    assert nodes_of(f"{edge.root}/") == [edge.root]
    (tmp_path / "empty").mkdir()
    assert nodes_of(f"file://{tmp_path}/empty") == []


@pytest.mark.parametrize(("past_s", "state"), [(29.999, "running"), (30.0, "running"), (30.001, "silent")])
def test_a_node_is_silent_after_three_intervals_and_at_least_30_s(edge: ShippedTap, past_s: float, state: str) -> None:
    in_segments(edge.tap, 2)
    edge.look()
    assert node_at(edge.root, edge.now_ns + int(past_s * 1e9)).state == state


def test_a_node_that_ended_in_order_is_not_waited_for(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 2))
    edge.look()
    assert node_at(edge.root, 1 << 62).state == "silent", "its framegate goes on"
    edge.leave()
    edge.look()
    node = node_at(edge.root, 1 << 62)
    assert (node.state, node.until_ns, node.streams, node.written) == ("stopped", FOREVER_NS, 1, 0)


def test_without_a_shipper_s_line_a_node_is_unknown(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 1))
    edge.look()
    shutil.copy(edge.folder / "_ledger.jsonl", edge.root.removeprefix("file://"))
    node, verdict, found = edge.verify()
    assert (node.state, verdict.complete, found[0].state) == ("unknown", False, "open")


def test_a_minute_is_open_while_any_node_was_not_heard_since_and_lost_if_any_lost(edge: ShippedTap, others: Callable[[str], ShippedTap]) -> None:
    third = others("third")
    edge.tap.end(in_segments(edge.tap, 3))
    edge.leave()
    edge.look()
    second = others("second")
    processor = in_segments(second.tap, 5, node="second")
    second.look({processor.stream: (START + 2 * MINUTE_NS, 0)})
    assert states(edge, second) == ["complete"] * 2 + ["open"] * 2
    third.die(in_segments(third.tap, 1), 3)
    third.leave()
    third.look()
    first, *_ = minutes(verify_node(tap.root, edge.now_ns) for tap in (edge, third))
    assert (first.state, first.at_most, first.reasons, first.waiting) == ("lost", 3, ["processor_died"], [])
    assert states(edge, second, third)[1:] == ["complete", "open", "open"]


def test_a_node_that_is_gone_is_not_waited_for_and_what_it_had_not_shipped_is_lost(edge: ShippedTap, others: Callable[[str], ShippedTap]) -> None:
    edge.tap.end(in_segments(edge.tap, 6))
    edge.leave()
    edge.look()
    crashed = others("crashed")
    crashed.now_ns = START + 3 * MINUTE_NS - 1
    crashed.restart()
    processor = in_segments(crashed.tap, 2, node="crashed")
    processor.writer.thread.seal(False)
    crashed.look({processor.stream: (START + 2 * MINUTE_NS, 0)})
    found = [verify_node(tap.root, edge.now_ns, sleep=edge.slept.append) for tap in (edge, crashed)]
    assert [minute.state for minute in minutes(found)] == ["complete", *["open"] * 5]
    judged = list(minutes(found, {"crashed"}))
    assert [minute.state for minute in judged] == ["complete", "lost", "lost", "complete", "complete", "complete"]
    assert judged[1].reasons == ["crashed is gone"]


# --- damage --------------------------------------------------------------------------------------------------------------------------


def test_a_node_that_is_heard_from_a_later_time_is_not_complete_until_then(edge: ShippedTap) -> None:
    """Its clock was wrong, and may have been set back since; what it sends then may be of any time before."""
    processor = in_segments(edge.tap, 3)
    processor.writer.thread.seal(False)
    edge.look({processor.stream: (edge.now_ns, 0)})
    for behind_ns, state in ((CLOCKS_NS, "running"), (CLOCKS_NS + 1, "unknown")):
        edge.now_ns = edge.shipped.heard_ns - behind_ns
        node, verdict, found = edge.verify()
        assert (node.state, verdict.complete) == (state, state == "running")
        assert any("its clock, or the one here, is wrong" in fault for fault in verdict.faults) is (state == "unknown")
        assert [minute.state for minute in found] == (["complete"] * 2 if state == "running" else ["open"] * 2) + ["open"]


def test_a_log_in_the_folder_of_another_node_is_a_fault(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 1))
    edge.leave()
    edge.look()
    folder = Path(edge.root.removeprefix("file://"))
    shutil.copytree(folder, folder.with_name("copy"))
    assert edge.verify()[1].complete
    node, verdict = verify_node(f"{edge.url}/copy", edge.now_ns)
    assert (node.state, verdict.faults) == ("unknown", ["its ledger was written for the node edge"])


def test_an_older_ledger_does_not_hide_streams_that_came_later(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 1))
    edge.look()
    path = edge.objects()[0]
    former = path.read_bytes()
    edge.tap.end(in_segments(edge.tap, 1, boot_id="b1"))
    edge.leave()
    edge.look()
    path.write_bytes(former)
    _, verdict, _ = edge.verify()
    assert ["not in the ledger" in fault for fault in verdict.faults] == [True]
