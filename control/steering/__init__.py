"""The control plane over running processors: what ``control.plane`` promises, done with the fleet and the intake.

    steering      the implementation of ``ControlPlane``, put together of the others
    channels      listed, described, muted and closed; who of them holds memory
    listeners     how they are
    limits        the largest frame of a listener's clients
    upstreams     how they are, and new addresses for every processor
    pool          the memory pool's size and shares, and the number of processors
    balance       which shares move to whom
    rates         the rates of quotas, divided among the processors as they are asked for
    division      how one of them is divided
    taps          the tap's rules
    tap_losses    frames that the tap's log did not take, told while that goes on
    drain         no more connections, and an orderly end of those that are open
    transactions  changes that end decided, whoever waits for them

Nothing is re-exported.
"""
