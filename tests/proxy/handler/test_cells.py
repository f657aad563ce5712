"""What a handler process tells, control finds."""

import os

from framegate.proxy.handler.cells import HeartbeatCells, HeartbeatSample, create_cells


def test_what_one_end_writes_the_other_reads() -> None:
    descriptor = create_cells("test")
    control, process = HeartbeatCells(descriptor), HeartbeatCells(descriptor)
    os.close(descriptor)
    assert (control.heartbeat_ns, control.read()) == (0, (0, 0, 0, 0, 0, 0))
    told = HeartbeatSample(handled=1, failed=2, busy_ns=2**62, in_handler=4, oldest_ns=5, queued=6)
    process.write(told, 7)
    assert (control.heartbeat_ns, control.read()) == (7, told)
    for end in (control, process):
        end.close()
