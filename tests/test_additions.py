"""What one touches to add something, and the causes that pages explain, are those there are."""

import re
from pathlib import Path

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from tests.fakes.cases import each_of

ROOT = Path(__file__).resolve().parents[1]
CONTRIBUTING = (ROOT / "deploy" / "docs" / "contributing.md").read_text()
CAUSES = (ROOT / "deploy" / "docs" / "errors-and-causes.md").read_text()
MODEL, MANUAL = "proxy/config/model.py", "control/configuration/manual.yaml"


def row(kind: str) -> tuple[int, list[str]]:
    """How many files the page says one touches to add something, and which."""
    found = re.search(rf"^\| {kind} \| (\d+) \| (.*?)(?:;|\|)", CONTRIBUTING, re.MULTILINE)
    assert found is not None, f"the page does not say what {kind} touches"
    return int(found[1]), re.findall(r"`((?:proxy|control|proto|deploy)/[a-z_0-9/.-]*)`", found[2])


def first_column(section: str) -> list[str]:
    """What the rows of a section's table begin with, in their order."""
    return re.findall(r"^\| `([a-z_]+)` \|", CAUSES.partition(f"## {section}\n")[2].partition("\n## ")[0], re.MULTILINE)


def test_the_causes_that_the_page_explains_are_those_there_are() -> None:
    assert first_column("Why a connection ended") == [cause.value for cause in Cause]


def test_the_mute_causes_that_the_page_explains_are_those_there_are() -> None:
    assert first_column("Why a connection is not read") == [name for name, _ in mute.CAUSES]


@each_of("kind", ["a key of the configuration", "a key of a tap rule", "an RPC", "a close cause", "a mute cause"])
def test_what_the_page_says_one_touches_is_there_and_counted(kind: str) -> None:
    count, paths = row(kind)
    assert all((ROOT / path).exists() for path in paths), paths
    beside = {"a key of a tap rule": 2}  # the two of every key
    assert count == len(paths) + beside.get(kind, 0)
