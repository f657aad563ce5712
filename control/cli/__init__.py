"""The command ``framegate``.

Data goes to standard output, everything else to standard error. Exit codes: 0 good; 1 a call failed; 2 wrong usage or configuration;
3 not found, or some of the named channels are not open (the others were changed); 4 conflict, nothing was changed; 5 the admin API or the
processors cannot be reached; 6 some of several pods failed; 130 after Ctrl-C; 141 when the reader of a pipe has closed it.

``main`` imports only click, so that ``framegate --version`` is quick. ``serve --config FILE``, as a container starts it, does not even import click,
which would take 2 MiB for as long as framegate runs, nor ssl for asyncio, which would take 5 MiB.
"""

import os.path
import signal
import sys
from typing import Any

__all__ = ["main"]

if sys.argv[1:2] == ["serve"]:
    # The kernel drops signals to process 1 that have no handler. Blocked, they wait until ``control.serve`` has set the handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1))


def main(**options: Any) -> None:
    """Run the command line and exit the process. ``options`` are passed to click."""
    if sys.argv[1:3] == ["serve", "--config"] and len(sys.argv) == 4 and os.path.isfile(sys.argv[3]):
        from framegate.control import asyncio_tls

        asyncio_tls.import_without_tls()
        from framegate.control.serve import serve

        sys.exit(serve(sys.argv[3]))
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded ends without a traceback
    from framegate.control.cli.commands import main as command

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    command(**options)
