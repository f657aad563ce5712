"""``framegate demo``: load, proxy, tap and Spark on one machine, and a report that compares what each of them counted.

    run           the whole demo; ``run`` is what the command calls
    steps         the changes over gRPC while the load runs, and their effects
    view          the live view and the clock during a wait; plain lines where standard output is no terminal
    report        the comparison of the counts; the log's proof of completeness
    ending        exit codes, the last lines
    stage         the files of one run, its processes (upstream, proxy, Spark), and questions to log and tables
    generator     the load generator; ``load`` has its frames and connections, and the handler that sends frames back
    steering      the calls to the control API, and a scrape of the metrics
    certificates  an authority, a server and a client for a day
    processes     child processes; signal handlers; which Java there is

The demo in front of a real Kafka broker, and the dashboards in six scenarios, are parts of a checkout: ``tests/demo``.
"""
