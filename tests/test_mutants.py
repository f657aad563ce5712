"""The list of `make mutants` fits the code: whoever changes a line of it changes the list, too."""

import runpy
from pathlib import Path

MUTANTS = runpy.run_path(str(Path(__file__).parent / "mutants" / "__main__.py"), run_name="mutants")


def test_each_text_is_once_in_its_file_and_each_test_file_is_there() -> None:
    rows = MUTANTS["read_list"]()
    assert len(rows) >= 60
    assert MUTANTS["faults"](rows) == []
