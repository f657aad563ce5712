"""The processors and the handler processes: how they are started, kept alive, told of changes and ended.

    supervisor       which processors run: start, watch, restart, change, drain, end
    desired_state    what every processor must agree on, and how it is told
    two_phases       a change in every processor or in none
    demands          what is asked of the rates in each processor
    connections      which processor has which, and the closed row of each
    casualties       the closed rows of connections that ended with their processor
    slot             one place for a processor, and what outlives those that come and go in it
    slot_cells       the slot's shared counters, and the account of a life that ended
    processor        what a processor is asked, and was given
    handlers         which handler processes run: start, watch, restart, end
    handler_process  one of them, and its place
    wiring           the sockets between processors and handler processes
    place            a place for one process after another, and how they follow each other
    child            one process: its sockets, its start, its end
    link             its command socket, from control's side
    reaper           every child that ended, orphans too

Who decides what shall run is ``control.steering``. Nothing is re-exported.
"""
