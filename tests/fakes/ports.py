"""Ports for programs and configurations that must know them before they listen."""

import contextlib
import random
import socket


def free_ports(count: int) -> range:
    """So many ports of 127.0.0.1 in a row that nobody has, below those that the system gives to programs that ask for any."""
    while True:
        first = random.randrange(10_000, 32_000 - count)
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            return range(first, first + count)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has."""
    return free_ports(1)[0]
