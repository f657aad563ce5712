"""The processors: how they are started, kept alive, told of changes and ended.

    supervisor  which processors run: start, watch, restart, drain, end; their notices and their casualties
    slot        one place for a processor, and what outlives those that come and go in it
    slot_cells  the slot's shared counters, and the account of a life that ended
    processor   one process: its sockets, its start, its end
    link        its command socket, from control's side
    two_phases  a change in every processor or in none
    casualties  the closed rows of connections that ended with their processor
    reaper      every child that ended, orphans too

Who decides what shall run is ``control.steering``. Nothing is re-exported.
"""
