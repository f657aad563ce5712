"""The picture is well-formed, and shows every candidate of every load that was measured."""

from pathlib import Path
from xml.etree import ElementTree

import plots
from report import Summary
from shapes import chosen


def test_every_measured_load_has_its_bars(tmp_path: Path) -> None:
    loads = chosen("100x1,64k", "plain")
    rows = [
        Summary(name, "plain", "100x1", 3, cost, cost * 0.9, cost * 1.5, 1.0, 1.0, 1.0, 1.0, 1.0)
        for name, cost in (("a<b", 0.2), ("framegate", 400.0))
    ]
    file = tmp_path / "plot.svg"
    plots.save(file, loads, {(row.protocol, row.shape, row.candidate): row for row in rows}, "here & now")
    words = [element.text for element in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert {"plain 100 B × 1 × 50", "a<b", "framegate", "0.200", "400", "here & now"} <= set(words)
    assert "plain 64 KiB × 4 × 10" not in words


def test_nothing_measured_is_an_empty_picture(tmp_path: Path) -> None:
    plots.save(tmp_path / "plot.svg", chosen("100x1", "plain"), {}, "")
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().get("width")
