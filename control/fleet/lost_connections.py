"""The closed rows of connections that ended with their processor: it could not write them itself."""

import time
from typing import Final

from framegate.control.fleet.processor import AssignedConnection, Processor
from framegate.proxy.server.rows import ClosedRow, LostRow, TrafficRow

__all__ = ["FORCED", "end_cause", "lost_connection_row"]

FORCED: Final = "stop"
"""The reason of ``Processor.kill`` when the proxy, or an operator, ends what is still busy: no crash."""


def end_cause(processor: Processor) -> str:
    """Why its connections ended, of ``framegate.proxy.cells.CAUSES``."""
    return "drain_timeout" if processor.kill_reason == FORCED else "processor_died"


def lost_connection_row(processor: Processor, given: AssignedConnection, upstream: str) -> ClosedRow:
    """A closed row with what control knows: client, id and times. Counts of the processor are None: unknown."""
    what = "was stopped by force" if processor.kill_reason == FORCED else "died"
    now_ns = time.time_ns()
    return ClosedRow(
        id=given.number,
        listener=given.handover.listener,
        peer=given.handover.peer,
        upstream=upstream,
        endpoint=None,
        principal=None,
        mechanism=None,
        tls=None,
        frames=TrafficRow(request=None, response=None),
        bytes=TrafficRow(request=None, response=None),
        opened_ns=given.handover.accepted_ns + now_ns - time.monotonic_ns(),
        handshake_ns=None,
        connect_ns=None,
        connect_started_ns=None,
        attempts=None,
        cause=end_cause(processor),
        detail=f"the processor {what}, exit code {processor.ended.result()}; what had passed is not known",
        side="internal",
        state="",
        closed_ns=now_ns,
        lost=LostRow(bytes=None, request=None, response=None),
        mutes={},
    )
