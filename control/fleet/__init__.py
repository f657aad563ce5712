"""Processors and handler processes: start, watch, restart, change and stop.

    supervisor        all processors
    desired_state     the state that every processor must have
    two_phases        a change in every processor or in none
    demands           what is asked of the rates in each processor
    connections       which processor has which connection; closed rows
    lost_connections  closed rows of connections that ended with their processor
    slot              the slot of a processor; ``slot_cells``: its shared counters
    processor         one processor
    handlers          all handler processes
    handler_process   one handler process, and its slot
    wiring            the sockets between processors and handler processes
    process_slot      a slot in which one process follows another
    child             one child process
    link              the command socket of a processor
    auth_requests     auth requests from processors to the worker pool; ``identity``: builds that pool
    reaper            waits for children that ended

``framegate.control.steering`` decides what runs. Nothing is re-exported.
"""
