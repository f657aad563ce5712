"""The group."""

import pytest
from click.testing import CliRunner

from control.cli import main


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert (result.exit_code, "_FRAMEGATE_COMPLETE" in result.stdout) == (0, True)


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
