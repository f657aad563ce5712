"""The last lines of a demo."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from control.demo.closing import print_closing
from control.demo.program import program
from control.demo.stage import Stage
from control.demo.workspace import Workspace


@pytest.mark.parametrize(("good", "last"), [(True, "RESULT: everything equal, everything seen"), (False, "RESULT: NOT everything")])
def test_it_says_where_things_lie_and_ends_with_the_result(tmp_path: Path, good: bool, last: str) -> None:
    out = io.StringIO()
    with Stage(Workspace(tmp_path / "demo")) as stage:
        print_closing(Console(file=out, width=40), stage, good=good, again="--seconds 20")
    lines = out.getvalue().splitlines()
    assert lines[-1].startswith(last)
    assert any(line.startswith("PySpark:") and f"{stage.workspace.tables}/frames" in line for line in lines)
    assert f"try next:       {program()} demo --seconds 20" in lines
    assert f"                {program()} check --config {stage.workspace.configuration}" in lines
