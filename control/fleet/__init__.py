"""Processors and handler processes: start, watch, restart, change and stop.

    supervisor        all processors
    desired_state     the state that every processor must have
    two_phases        a change in every processor or in none
    connections       which processor has which connection; closed rows
    processor         one processor, and its slot; ``slot_cells``: the shared counters of the slot
    handlers          all handler processes
    handler_process   one handler process, and its slot
    wiring            the sockets between processors and handler processes
    process_slot      a slot in which one process follows another; what ``supervisor`` and ``handlers`` share
    child             one child process; the reaper of children that ended
    link              the command socket of a child process
    identity          the auth worker pool, and auth requests from processors to it

``framegate.control.steering`` decides what runs. Nothing is re-exported.
"""
