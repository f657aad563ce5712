"""The group of commands, and what runs before a command is known."""

import json
import os
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from framegate import control
from framegate.control.cli.commands import main, version_text
from tests.fakes.cases import each_of
from tests.fakes.cli import TAP, VERBS, run_cli, served
from tests.fakes.plane import channel_row

FULL = "framegate: standard output cannot be written: No space left on device\n"


def test_ctrl_c_while_modules_are_loaded_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "framegate.control.cli"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL, "whoever imports the command gets a handler of its own back"


@each_of("shell", ["zsh", "fish"])
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
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m framegate.control.cli "$@"\n')
    script.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(control.__file__).parents[2])}
    done = subprocess.run([shell, "-c", ask], capture_output=True, text=True, env=variables, check=False)
    assert {"channels", "check"} <= set(done.stdout.split()), done.stderr


def test_version_and_help_are_good() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("framegate ")
    assert "channels" in CliRunner().invoke(main, ["--help"]).stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--version", "--help", "init --help", "tap ls -h", "config explain", "completion bash", "init made"])
def test_an_output_that_cannot_be_written_has_its_message_and_code(tmp_path: Path, words: str) -> None:
    reader, closed = os.pipe()
    os.close(reader)
    for target, expected in (("/dev/full", (1, "", FULL)), (closed, (141, "", ""))):
        with open(target, "w") as output:
            folder = tmp_path / str(expected[0])
            assert run_cli(*words.replace("made", str(folder)).split(), stdout=output) == expected


@pytest.mark.slow
def test_a_message_that_cannot_be_written_does_not_change_the_exit_code() -> None:
    for words, code in {"config explain nokey": 3, "dance": 2, "tap dance": 2, "init --upstream nowhere": 2, "check --config /dev/null": 2}.items():
        with open("/dev/full", "w") as full:
            assert run_cli(*words.split(), stderr=full)[0] == code, words


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["dance"]).exit_code == 2


@each_of("words", VERBS)
def test_every_verb_prints_one_document_of_json_and_nothing_besides(words: tuple[str, ...]) -> None:
    with served(TAP) as cli:
        cli.plane.add(channel_row("0-1-7"))
        result = cli(*words, "--output", "json")
        assert (result.exit_code, result.stderr) == (0, "framegate: nothing was changed: --dry-run\n" * ("--dry-run" in words))
        document = json.loads(result.stdout)
        assert isinstance(document, list) or document


def test_ctrl_c_is_one_line_and_130_whatever_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**options: object) -> int:
        raise KeyboardInterrupt

    module = types.ModuleType("framegate.control.demo.run")
    vars(module).update(run=interrupted)
    monkeypatch.setitem(sys.modules, "framegate.control.demo.run", module)
    result = CliRunner().invoke(main, ["demo"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "framegate: interrupted\n")


def test_the_version_names_the_build(expected_build: str) -> None:
    text = version_text()
    assert text.startswith("framegate ")
    assert ("compiled" if expected_build == "compiled" else "plain Python") in text


@pytest.mark.slow
def test_the_version_loads_neither_grpc_nor_rich_nor_pydantic() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from framegate.control.cli.commands import main; "
        "assert CliRunner().invoke(main, ['--version']).exit_code == 0; "
        "print([name for name in ('grpc', 'rich', 'pydantic', 'opentelemetry', 'ruamel', 'framegate.proxy.network.channel') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout == "[]\n"


SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
class Hangup:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, Hangup())
import framegate.control.cli
import framegate.control.cli.commands
print("alive")
"""


@each_of(("verb", "code", "said"), [("serve", 0, "alive\n"), ("status", -signal.SIGHUP, "")])
def test_a_hangup_while_modules_are_loaded_ends_no_framegate_that_starts_to_serve(verb: str, code: int, said: str) -> None:
    """Other commands end with their terminal, as programs do."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, verb], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (code, said)
