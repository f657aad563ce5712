"""The group."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import control
from control.cli import main


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert (result.exit_code, "_FRAMEGATE_COMPLETE" in result.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "ask"),
    [
        (
            "bash",
            'eval "$(framegate completion bash)"; COMP_WORDS=(framegate ch); COMP_CWORD=1; _framegate_completion framegate; echo "${COMPREPLY[@]}"',
        ),
        ("fish", 'framegate completion fish | source; complete -C "framegate ch"'),
    ],
)
def test_completion_completes_in_the_shell(tmp_path: Path, shell: str, ask: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "framegate"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m control.cli "$@"\n')
    script.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(control.__file__).parents[1])}
    done = subprocess.run([shell, "-c", ask], capture_output=True, text=True, env=variables, check=False)
    assert {"channels", "check"} <= set(done.stdout.split()), done.stderr


def test_version_and_help_are_good() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("framegate ")
    assert "channels" in CliRunner().invoke(main, ["--help"]).stdout


def test_ctrl_c_in_any_command_is_one_line_and_the_code_that_shells_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.commands["completion"], "callback", interrupt)
    result = CliRunner().invoke(main, ["completion", "zsh"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "framegate: interrupted\n")


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["dance"]).exit_code == 2
