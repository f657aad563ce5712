"""The command ``framegate``.

    commands    the group, and what each command is; bodies are loaded when they are called
    local       check, serve, demo, pipeline run
    channels, limits, pools, listeners, upstreams, proxies   the commands that call the control plane
    client      the connection to it, and what its errors mean for the exit code
    output      tables and JSON
    kinds       sizes, times, ids: what options may hold
    version     what ``--version`` says

Data goes to standard output, everything else to standard error. Exit codes: 0 good; 1 a call failed; 2 wrong usage or configuration;
3 not found; 4 conflict, nothing was changed; 5 the control plane cannot be reached.

``main`` imports nothing but click, so that ``framegate --version`` is quick and ``framegate serve`` small.
"""

from control.cli.commands import main

__all__ = ["main"]
