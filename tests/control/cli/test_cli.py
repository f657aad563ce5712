"""What holds before a command is known: signals, from the first line of ours on."""

import signal
import subprocess
import sys

from tests.fakes.cases import each_of

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
