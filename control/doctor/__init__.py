"""``framegate doctor``: looks at framegate's surroundings, and says of each thing what was found and what to do.

    examination    everything, in order; ``probe`` looks side by side and bounds the time, ``surroundings`` is what each area gets
    finding        what is said of one thing, and the form of the JSON document
    configuration  what ``framegate check`` finds, in the area that it is of
    running        the framegate that runs here
    limits, memory, cpu    what processes and the container may use; ``cgroup`` reads the control group
    certificates   files of TLS; ``validity``: how long they have yet, and what is weak
    names, lookups, upstreams    the resolver, the names of upstreams, their addresses; ``advertised``: where brokers send clients
    collector                           exports over OTLP
    clock, disk, permissions, kernel    the machine
    kubernetes     what holds in a pod; ``mounts`` reads what is mounted

It changes nothing, and runs beside a framegate at work, without a shell, on a read-only root, as any user.
"""
