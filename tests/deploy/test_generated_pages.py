"""The generated files in ``deploy/`` are what the code says."""

from pathlib import Path

from tests.fakes.deploying import module

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_the_generated_files_are_up_to_date() -> None:
    wrong = [name for name, text in module("pages").pages().items() if (DEPLOY / name).read_text() != text]
    assert wrong == [], "make pages writes them"
