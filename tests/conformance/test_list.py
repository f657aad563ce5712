"""The lists of behaviours name tests that are there."""

import re
from pathlib import Path

from framegate.proxy.cells import METRICS

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = Path(__file__).parent / "KAFKA.md"
NAMED = re.compile(r"`(tests/[^`]*)`")


def rows(text: str) -> list[str]:
    """The last column of each row of each table."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| behaviour ")]
    return [line.removesuffix(" |").rpartition(" | ")[2] for line in lines]


def missing(text: str) -> list[str]:
    """The tests that a text names and that are not there; a file alone stands for all of its tests."""
    found = []
    for named in NAMED.findall(text):
        path, _, name = named.partition("::")
        file = ROOT / path
        if not file.is_file() or (name and not re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE)):
            found.append(named)
    return found


def test_every_test_that_is_named_is_there() -> None:
    text = LIST.read_text()
    assert missing(text) == []
    assert len(set(NAMED.findall(text))) > 80


def test_every_metric_that_is_named_is_there() -> None:
    named = set(re.findall(r"`(framegate\.[a-z_.]+)`", LIST.read_text()))
    assert named - {metric.name for metric in METRICS} == set()
    assert len(named) > 30


def test_every_row_names_a_test_or_a_reason() -> None:
    shown = rows(LIST.read_text())
    assert len(shown) > 60
    assert [cell for cell in shown if not NAMED.search(cell) and len(cell.split()) < 4] == []
