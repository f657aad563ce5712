"""``framegate doctor``: runs what ``framegate check`` runs, looks at framegate's surroundings, and says of each thing what was found and what to do.

    examination    everything, in order, with what ``check`` finds; ``probe`` looks side by side and bounds the time, ``surroundings`` is what each
                   area gets
    finding        what is said of one thing, and the form of the JSON document
    running        the framegate that runs here
    container      limits of processes, memory and CPUs; ``machine``: the kernel's settings and the clock; ``disk``: the tap's, and mounts
    certificates   files of TLS: how long they have yet, and what is weak
    names, upstreams    the resolver and the names of upstreams; their addresses; ``advertised``: where brokers send clients
    collector      exports over OTLP
    permissions    of files, of this process, and of a pod's volumes

It changes nothing, and runs beside a framegate at work, without a shell, on a read-only root, as any user.
"""
