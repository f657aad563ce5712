"""What is counted by blocks of cells; and that a metric is one declaration and one place that counts."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.cells import (
    CAUSES,
    CONNECT_ERRORS,
    DURATION_ERRORS,
    ENDPOINT_BLOCK,
    LISTENER_BLOCK,
    METRICS,
    MUTE_CAUSES,
    ORDERLY_CAUSES,
    PROCESSOR_BLOCK,
)
from framegate.proxy.network import mute
from framegate.proxy.network.framing import SIZE_BOUNDS
from framegate.proxy.relay.counters import ERROR_INDEX, Counts, LoopCounters
from framegate.proxy.relay.publisher import POOL_WAITS, TAP_APPENDS

ROOT = Path(__file__).resolve().parents[3]


def test_the_closed_lists_agree_with_the_network():
    assert tuple(str(cause) for cause in Cause) == CAUSES
    assert tuple(name for name, _ in mute.CAUSES) == MUTE_CAUSES
    sizes = next(metric for metric in METRICS if metric.name == "framegate.frame.size")
    assert sizes.bounds == tuple(float(bound) for bound in SIZE_BOUNDS)
    assert all(DURATION_ERRORS[ERROR_INDEX[cause]] == ("" if cause in ORDERLY_CAUSES else cause) for cause in CAUSES)


def test_a_block_has_a_cell_for_each_count_and_histograms_say_where_theirs_are():
    counts = Counts(ENDPOINT_BLOCK)
    assert list(counts.cells) == [0] * ENDPOINT_BLOCK.count
    first, *others = counts.each_histogram("framegate.upstream.connect.duration")
    assert first.offset == ENDPOINT_BLOCK.count
    assert [other.offset for other in others] == [first.offset + (len(first.buckets) + 1) * number for number in range(1, len(CONNECT_ERRORS))]
    assert counts.histograms == [first, *others]
    with pytest.raises(KeyError):
        counts.histogram("framegate.connection.duration", "downstream", "")
    with pytest.raises(KeyError):  # a metric that is not declared cannot be counted
        LISTENER_BLOCK.at("framegate.connection.renamed", "second")


def test_the_processors_histograms_do_not_share_a_cell():
    """Those of the loop, and those that the pool and the tap have: ``Publisher`` says where."""
    histograms = LoopCounters().counts.histograms
    at = [histogram.offset + cell for histogram in histograms for cell in range(len(histogram.buckets) + 1)]
    for name, start in (("memory_pool.wait.duration", POOL_WAITS), *(("tap.append.duration", start) for start in TAP_APPENDS)):
        at += range(start, start + len(PROCESSOR_BLOCK.metric(f"framegate.{name}").bounds) + 2)
    assert sorted(at) == list(range(PROCESSOR_BLOCK.count, PROCESSOR_BLOCK.size))


NEW = """    _metric("connection.renamed", "counter", "{connection}", "Connections that a test counts.", _LISTENER, (REASON, ("first", "second"))),
"""
COUNTS = """
import os
from types import SimpleNamespace
from framegate.proxy.cells import LISTENER_BLOCK, CellLayout, CellReader, CellWriter, create
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.relay.counters import Counters
from framegate.proxy.relay.publisher import Publisher

RENAMED = LISTENER_BLOCK.at("framegate.connection.renamed", "second")

names = SimpleNamespace(listeners=[SimpleNamespace(name="a"), SimpleNamespace(name="b")], upstreams=[SimpleNamespace(name="u", addresses=())])
layout = CellLayout.of(names)
descriptor = create(layout)
writer = CellWriter(descriptor, layout)
counters = Counters(["a", "b"], ["u"])
writer.start(1, 1, 0)
publisher = Publisher(writer, counters, {"a": ReceiveLimit(1), "b": ReceiveLimit(1)}, MemoryPool(1, lambda: 0), None)
counters.listeners["b"].counts.cells[RENAMED] += 3
publisher.publish()
shown = CellReader(descriptor, layout).snapshot()
print(sorted((*dict(at).values(), value) for (metric, at), value in shown.items() if "renamed" in metric.name))
print(int(sum(value for (metric, at), value in shown.items() if metric.kind == "counter")))
"""


@pytest.mark.slow  # a copy of the sources, and an interpreter of its own
def test_a_metric_is_one_declaration_and_one_place_that_counts(tmp_path: Path) -> None:
    """Two files: the table, and the module that counts. It is put in the middle: every offset behind it follows."""
    shutil.copytree(ROOT / ".src", tmp_path / ".src", symlinks=True)
    shutil.copytree(ROOT / "proxy", tmp_path / "proxy", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    table = tmp_path / "proxy" / "cells" / "metrics.py"
    before = '    _metric("connection.accepted", "counter"'
    source = table.read_text()
    assert source.count(before) == 1
    table.write_text(source.replace(before, NEW + before))
    (tmp_path / "counts.py").write_text(COUNTS)
    done = subprocess.run(
        [sys.executable, "-P", "counts.py"], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / ".src")}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["[('a', 'first', 0), ('a', 'second', 0), ('b', 'first', 0), ('b', 'second', 3)]", "3"], done.stderr
    ours = {path.relative_to(ROOT): path.read_bytes() for path in (ROOT / "proxy").rglob("*.py")}
    changed = [str(path) for path, text in ours.items() if (tmp_path / path).read_bytes() != text]
    assert changed == ["proxy/cells/metrics.py"]
