"""``framegate demo``: everything on one machine, and a report that proves it.

    run           sets all of it up, lets it run, ends it in order; ``run`` is what the command calls
    acts          what the demo does over gRPC while the load runs, and what was seen
    view          the live view; plain lines where standard output is no terminal
    waiting       what is shown while there is nothing to see
    program       what to type for this very program
    report        the four counts of each direction, compared
    kafka         the same in front of a real broker
    records       its clients: numbered records, produced and consumed
    small_pool    there: answers of 50 MiB through a memory pool of 16 MiB; ``fetches`` its clients, ``peaks`` the most memory that was seen
    load          the frames: numbered, with a checksum
    client        one connection of the load; ``generator`` the process that paces many of them
    upstream      the handler that answers every frame, in a framegate of its own
    broker        Apache Kafka from its published jars, for the demo and for tests
    certificates  an authority, a server and a client for a day
    signals       Ctrl-C and SIGTERM, as exceptions
    processes     children: started, read, ended in order
    java          which Java there is

A module with a ``main`` runs as a process of its own: ``python -m control.demo.generator``.
"""
