"""The command ``framegate``.

    commands    the group, and what each command is; bodies are loaded when they are called
    local       check, serve, demo; ``pipeline`` run; ``doctor`` looks at all that is around
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

``main`` imports nothing but click, so that ``framegate --version`` is quick; ``serve --config FILE``, as a container starts it, does without that,
too: it would keep 2 MiB of it as long as it runs.
"""

import os.path
import signal
import sys
from typing import Any

__all__ = ["main"]

if sys.argv[1:2] == ["serve"]:
    # As process 1, which the kernel spares signals without a handler, it would miss those that come before ``control.signals`` has set some.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def main(**options: Any) -> None:
    """The program: runs what the command line says, and exits. ``options`` are click's."""
    if sys.argv[1:3] == ["serve", "--config"] and len(sys.argv) == 4 and os.path.isfile(sys.argv[3]):
        from control.serve import serve

        sys.exit(serve(sys.argv[3]))
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded ends without a traceback
    from control.cli.commands import main as command

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    command(**options)
