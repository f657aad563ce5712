"""What shows and changes a running framegate, done with the fleet and the intake.

    steering      all parts, put together
    state         configuration, counters and health, for telemetry and probes
    rows          which rows of the log are written; audit rows
    channels      listed, described, muted and closed; who of them holds memory
    listeners     how they are
    limits        the largest frame of a listener's clients
    upstreams     how they are, and new addresses for every processor
    pool          the memory pool's size and shares, and the number of processors
    balance       which shares move to whom
    rates         the rates of quotas, divided among the processors as they are asked for
    taps          the tap's rules
    tap_losses    frames that the tap's log did not take, told while that goes on
    drain         no more connections, and an orderly end of those that are open
    transactions  changes that end decided, whoever waits for them

Nothing is re-exported.
"""
