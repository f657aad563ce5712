"""``framegate demo``: everything on one machine, and a report that proves it.

    run           sets all of it up, lets it run, ends it in order; ``run`` is what the command calls
    steps         what the demo changes over gRPC while the load runs, and what was seen
    view          the live view, and what is shown during a wait; plain lines where standard output is no terminal
    report        the four counts of each direction, compared; the log's own proof
    closing       the last lines: checks, where files are, what to type next
    stage         the processes: upstream, proxy, Spark; and questions to log and tables
    generator     the load: a process that paces numbered frames over many connections; ``client`` is one connection, ``load`` the frames
    upstream      the handler that answers every frame, in a framegate of its own
    steering      the calls to the control API; ``metrics`` reads a scrape
    certificates  an authority, a server and a client for a day
    processes     children: started, read, ended in order; which Java there is
    signals       Ctrl-C and SIGTERM as exceptions, errors as exit codes
    workspace     the folder of one run

The same in front of a real Kafka broker, and the dashboards in six scenarios, are parts of a checkout: ``tests/demo``.
"""
