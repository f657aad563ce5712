"""The parts that show and change a running framegate, over ``control.fleet`` and ``control.accept``.

    steering      all parts, put together
    state         configuration, counters and health, for telemetry and probes
    rows          which rows of the log are written; audit rows; access rows
    channels      channels are listed, described, muted and closed; which hold most memory
    clients       which clients use most, and whose logins fail
    listeners     the status of listeners and upstreams; new addresses of upstreams
    brokers       the brokers of clusters, with their ports, status and metrics; cluster: one of them, found and put in force
    checks        the active checks of endpoints
    limits        the largest frame of a listener's clients; quotas; connections above the node's limit are closed
    pool          the memory pool's size and shares, and the number of processors
    sizing        both follow the container
    rates         the rates of quotas are divided among the processors by demand
    taps          the tap's rules; frames that the log loses
    users         the users of listeners with SASL
    alerts        the problems that are known, and commands for them; failures: their conditions; condition: over metrics
    problems      those that there are now
    drain         no new connections, and an orderly end of the open ones
    transactions  changes that are completed or taken back when their call is cancelled

Nothing is re-exported.
"""
