"""``framegate --version``."""

import subprocess
import sys

import pytest

from framegate.control.cli import version


def test_it_names_version_build_and_python(expected_build: str) -> None:
    text = version.version_text()
    assert text.startswith("framegate ")
    assert ("compiled" if expected_build == "compiled" else "plain Python") in text


@pytest.mark.slow
def test_it_loads_neither_grpc_nor_rich_nor_pydantic() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from framegate.control.cli.commands import main; "
        "assert CliRunner().invoke(main, ['--version']).exit_code == 0; "
        "print([name for name in ('grpc', 'rich', 'pydantic', 'opentelemetry', 'ruamel', 'framegate.proxy.network.channel') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout == "[]\n"
