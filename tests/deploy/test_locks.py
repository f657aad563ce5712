"""What the images install: everything that pyproject.toml asks for, one version of each, with hashes, and nothing about where it came from."""

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fakes import deploying
from tests.fakes.cases import each_of

locks = deploying.module("locks")
BUILD, SIDECAR, SPARK = ((locks.LOCKS / f"{name}.txt").read_text() for name in ("build", "framegate", "spark"))


def versions(text: str) -> dict[str, str]:
    return {canonicalize_name(name): entry.partition("==")[2].split()[0] for name, entry in locks.pinned(text).items()}


@each_of(
    ("asked", "found"),
    [
        (locks.requirements(*locks.SIDECAR_EXTRAS), versions(SIDECAR)),
        (locks.requirements(*locks.SIDECAR_EXTRAS, "spark"), {**versions(SIDECAR), **versions(SPARK)}),
        (locks.build_requirements(), versions(BUILD)),
    ],
)
def test_what_pyproject_asks_for_is_locked_in_a_version_that_it_allows(asked: list[str], found: dict[str, str]) -> None:
    for requirement in map(Requirement, asked):
        version = found.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: make locks"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} is locked as {version}: make locks"


@each_of("text", [BUILD, SIDECAR, SPARK])
def test_each_entry_has_hashes_and_no_line_says_where_it_came_from(text: str) -> None:
    for name, entry in locks.pinned(text).items():
        first, *others = entry.splitlines()
        assert re.fullmatch(rf"{re.escape(name)}==\S+( ; .*)? \\", first)
        assert others
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in others)
    assert "://" not in text


def test_the_spark_image_adds_and_never_replaces() -> None:
    assert not versions(SPARK).keys() & versions(SIDECAR).keys()


def test_an_entry_is_a_package_and_the_lines_behind_it() -> None:
    text = "# who wrote it\none==1 \\\n    --hash=a\ntwo==2 ; python_version < '4' \\\n    --hash=b \\\n    --hash=c\n"
    assert locks.pinned(text) == {"one": "one==1 \\\n    --hash=a\n", "two": "two==2 ; python_version < '4' \\\n    --hash=b \\\n    --hash=c\n"}
    assert locks.without(text, "one==3 \\\n    --hash=d\n") == "two==2 ; python_version < '4' \\\n    --hash=b \\\n    --hash=c\n"
    assert locks.pinned("") == {}
