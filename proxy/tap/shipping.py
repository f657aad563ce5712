"""The shipper's process, which control starts: ``python -m framegate.proxy.tap.shipping``. It may hang or die at any time, and nothing else does.

Its standard input is a socket of messages, JSON. From control come, first, the options of ``Shipper`` with ``directory`` and ``url``; then, each
second, ``{"at_ns": …, "at_s": …, "streams": {name: [idle_ns, failed_ns]}}`` (``Told``). When control closes its end, or dies, the process ships what
is left and ends, after ``END_S`` at the latest, whatever the store does: the shipper of the next control waits for that. It sends ``{"error": text}``
when shipping begins to fail, or fails for another reason; with an empty text: it works, again.
"""

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from framegate.proxy.tap.consumer import ConsumerInUseError, claim_consumer
from framegate.proxy.tap.shipper import CONSUMER, Shipper, Told, ToldStream
from framegate.proxy.tap.store import store_at

LAST_S: Final = 5.0  # how long what is left at the end is tried again
END_S: Final = LAST_S + 1.0
MESSAGE_BYTES: Final = 256 * 1024
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_LAST_PAUSE_S: Final = 0.2
_NICE: Final = 10


class Shipping:
    """The loop of the process. ``connection``: to control. ``options``: the first message."""

    def __init__(self, connection: socket.socket, options: Mapping[str, Any]) -> None:
        self._connection = connection
        self._options = dict(options)
        self._shipper: Shipper | None = None
        self._claim = contextlib.ExitStack()
        self._told: Told | None = None
        self._ended = False
        self._pause_s = 0.0
        self._said: str | None = None

    def run(self) -> None:
        """Ship until control closes its end."""
        with self._claim:
            due_s = 0.0
            while not self._ended:
                if time.monotonic() >= due_s:
                    due_s = time.monotonic() + (0.0 if self._attempt(last=False) else self._back_off())
                self._receive(max(0.0, due_s - time.monotonic()))
            until_s = time.monotonic() + LAST_S
            while not self._attempt(last=True) and time.monotonic() < until_s:
                time.sleep(_LAST_PAUSE_S)

    def _back_off(self) -> float:
        self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        return self._pause_s

    def _attempt(self, *, last: bool) -> bool:
        """A pass; True: nothing failed, and at the end everything was shipped."""
        try:
            if self._shipper is None:
                options = dict(self._options)
                directory, store = options.pop("directory"), store_at(options.pop("url"), create=True)
                self._claim.enter_context(claim_consumer(directory, CONSUMER))
                self._shipper = Shipper(directory, store, register=True, **options)
            done = self._shipper.look(self._told, last=last)
        except (OSError, ConsumerInUseError) as error:
            self._say(str(error))
            return False
        self._pause_s = 0.0
        self._say("")
        return done or not last

    def _say(self, error: str) -> None:
        if error != self._said:
            self._said = error
            with contextlib.suppress(OSError):  # control has ended
                self._connection.send(json.dumps({"error": error}).encode(), socket.MSG_DONTWAIT)

    def _receive(self, wait_s: float) -> None:
        """Wait for a message of control, or for so long if that is not 0; take all that have come. Only the last one counts."""
        select.select([self._connection], [], [], wait_s or None)
        while True:
            try:
                data = self._connection.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                self._ended = True
                return
            message = json.loads(data)
            self._told = Told(message["at_ns"], message["at_s"], {name: ToldStream(*facts) for name, facts in message["streams"].items()})


def _end_with(connection: socket.socket) -> None:
    """End the process ``END_S`` after control has closed its end. A request may last for minutes."""
    hung_up = select.poll()
    hung_up.register(connection, 0)
    hung_up.poll()
    time.sleep(END_S)
    os._exit(1)


def main() -> None:
    """Serve control over standard input."""
    os.nice(_NICE)
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as connection:
        connection.setblocking(True)
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        first = connection.recv(MESSAGE_BYTES)
        if first:
            Shipping(connection, json.loads(first)).run()


if __name__ == "__main__":
    main()
