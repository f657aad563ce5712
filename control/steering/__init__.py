"""The control plane over running processors: what ``control.plane`` promises, done with the fleet and the intake.

    steering      the implementation of ``ControlPlane``
    pool          the memory pool's size and shares, and the number of processors
    balance       which shares move to whom
    taps          the tap's rules
    transactions  changes that end decided, whoever waits for them

Nothing is re-exported.
"""
