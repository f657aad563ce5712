"""The command ``framegate``.

    commands    the group, and what each command is; bodies are loaded when they are called
    local       check, serve, demo; ``pipeline`` run
    channels, handlers, limits, pools, listeners, upstreams, certificates, taps, proxies   the commands that call the control plane
    tap         tap ls, cat, follow, verify, consumers: the log on this machine; ``tap`` says which of the modules ``tap_*`` does what
    users       users add, remove, list: a file on this machine
    inject      framegate into the pods of Kubernetes' manifests, and out of them
    client      the connection to it, and what its errors mean for the exit code; ``reach`` finds out why there is none
    output      tables and JSON
    kinds       sizes, times, ids, addresses: what options may hold; ``options`` that many commands share
    version     what ``--version`` says

Data goes to standard output, everything else to standard error. Exit codes: 0 good; 1 a call failed; 2 wrong usage or configuration;
3 not found, or some of the channels that were named are not open (what was asked for is done to the others); 4 conflict, nothing was changed;
5 the control plane, or the processors that would have to answer, cannot be reached. As of any program: 130 after Ctrl-C, 141 when nobody reads the
output any more.

``main`` imports nothing but click, so that ``framegate --version`` is quick and ``framegate serve`` small.
"""

import signal
import sys

if sys.argv[1:2] == ["serve"]:
    # Nothing has been read that could be read again; by default it would end the process. `control.signals` keeps what comes later.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
_before = signal.getsignal(signal.SIGINT)
if _before is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded ends without a traceback

from control.cli.commands import main  # noqa: E402

if _before is signal.default_int_handler:
    signal.signal(signal.SIGINT, _before)

__all__ = ["main"]
