"""``framegate --version``."""

import subprocess
import sys

import pytest

from control.cli import version


def test_it_names_version_build_and_python(expected_build: str) -> None:
    text = version.version_text()
    assert text.startswith("framegate ")
    assert ("compiled" if expected_build == "compiled" else "plain Python") in text


def test_the_suffix_of_the_modules_file_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        origin = "/x/framing.cpython-311-x86_64-linux-gnu.so"

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec())
    assert version.is_compiled()


@pytest.mark.slow
def test_it_loads_neither_grpc_nor_rich_nor_pydantic() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from control.cli.commands import main; "
        "assert CliRunner().invoke(main, ['--version']).exit_code == 0; "
        "print([name for name in ('grpc', 'rich', 'pydantic', 'opentelemetry', 'ruamel', 'proxy.network.channel') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout == "[]\n"
