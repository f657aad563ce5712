"""The real handler process, for tests of control. ``FAKE_HANDLER`` in the environment makes it misbehave, in the place behind an ``@`` or in all of
them; with a ``+`` before the word from its second life on, which files tell whose names begin as ``FAKE_HANDLER_LIVES`` says:

fail            cannot start
exits           exits with code 3 when it is told to start
hanging         says that it has been at one frame for an hour
silent          its heartbeat never moves
hungry          takes 64 MiB once it is ready
deaf            does not hear stop, nor the end of its link
raising         says that a handler raised
babbling        tells what nobody knows, and a row of which nobody knows
parent          has a child of its own, which sleeps for a minute
breaking        says of its first socket to a processor, when it has greeted it, that it broke
newer           says that it speaks another version of the link
unversioned     says no version of it
"""

import os
import socket
import subprocess
import sys
from typing import Any

from framegate.proxy.handler import __main__ as entry
from framegate.proxy.handler import reporter
from framegate.proxy.handler.activity import HeartbeatSample
from framegate.proxy.handler.load import LoadedHandler, LoadError, load
from framegate.proxy.handler.runtime import Runtime
from framegate.proxy.server.link import Handover
from framegate.proxy.server.messages import HandlerReadyMessage, LogNotice
from framegate.proxy.server.protocol import event_notice
from framegate.proxy.server.rows import HandlerRaisedRow

BEAT_NS = 20_000_000


def mode_of(slot: int) -> str:
    """How the process in a slot misbehaves; empty: not at all."""
    mode, _, where = os.environ.get("FAKE_HANDLER", "").partition("@")
    lives = os.environ.get("FAKE_HANDLER_LIVES", "")
    again = bool(lives) and os.path.exists(f"{lives}-{slot}")
    if lives:
        open(f"{lives}-{slot}", "a").close()
    return mode.removeprefix("+") if where in ("", str(slot)) and (again or not mode.startswith("+")) else ""


def load_none(name: str) -> LoadedHandler:
    raise LoadError(f"{name}: the fake has no such handler")


class MisbehavingReporter(reporter.Reporter):
    def notify_ready(self, message: Any) -> None:
        wire = {"newer": {"wire": message["wire"] + 1}, "unversioned": {"wire": None}}.get(MODE, {})
        super().notify_ready({key: value for key, value in {**message, **wire}.items() if value is not None})
        self.misbehave(message)

    def misbehave(self, ready: HandlerReadyMessage) -> None:
        if MODE == "hungry":
            self.held = bytearray(os.urandom(1024)) * (64 * 1024)
        elif MODE == "raising":
            name = "framegate.proxy.handler.echo:echo"
            row = HandlerRaisedRow(
                listener=next(iter(ready["handlers"])), handler=name, connection="0-1-1", error="ValueError: no", traceback="line 1", suppressed=2
            )
            self.notify(event_notice("handler_raised", row))
        elif MODE == "babbling":
            self.notify({"type": "dance"})
            self.notify(LogNotice(type="log", level="info", event="dance", fields={}))
        elif MODE == "parent":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            print(f"child {child.pid}", flush=True)

    def begin_end(self) -> None:
        if MODE != "deaf":
            super().begin_end()

    def _heartbeat(self, now_ns: int) -> None:
        if MODE == "hanging" and self._beats:
            self._cells.write(HeartbeatSample(0, 0, 0, 1, 3600 * 10**9, 0), now_ns)
        elif MODE != "silent":
            super()._heartbeat(now_ns)


class MisbehavingRuntime(Runtime):
    broke = False

    def _begin(self, sock: socket.socket, handover: Handover) -> None:
        super()._begin(sock, handover)
        if MODE == "breaking" and not self.broke:
            self.broke = True
            for processor in tuple(self._processors):
                processor.end()
            self._report_parted(handover, "the fake was told to")


if __name__ == "__main__":
    MODE = mode_of(int(sys.argv[sys.argv.index("--slot") + 1]))
    vars(reporter).update(BEAT_NS=BEAT_NS)
    vars(entry).update(
        Reporter=MisbehavingReporter,
        Runtime=MisbehavingRuntime,
        load=load_none if MODE == "fail" else load,
        read_handler_start=(lambda message: os._exit(3)) if MODE == "exits" else entry.read_handler_start,
    )
    sys.exit(entry.main(sys.argv[1:]))
