"""What a handler process tells, control finds."""

import os

from proxy.handler.cells import Beat, BeatCells, create_cells


def test_what_one_end_writes_the_other_reads() -> None:
    descriptor = create_cells("test")
    control, process = BeatCells(descriptor), BeatCells(descriptor)
    os.close(descriptor)
    assert (control.heartbeat_ns, control.read()) == (0, (0, 0, 0, 0, 0, 0))
    told = Beat(handled=1, failed=2, busy_ns=2**62, in_handler=4, oldest_ns=5, queued=6)
    process.write(told, 7)
    assert (control.heartbeat_ns, control.read()) == (7, told)
    for end in (control, process):
        end.close()
