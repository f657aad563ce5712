"""``framegate doctor``: all that ``framegate check`` finds, and probes of framegate's surroundings, each with what was found and what to do.

    examination    everything, in order; ``surroundings`` is what each area gets
    finding        one finding, the form of the JSON document, and probes, which run in parallel and in bounded time
    running        the framegate that runs here
    container      limits of processes, memory and CPUs; ``machine``: the kernel's settings and the clock; ``disk``: the tap's, and mounts
    certificates   TLS files: their validity and what is weak
    names          the resolver and the names of upstreams; ``upstreams``: their addresses; ``advertised``: where brokers send clients
    collector      exports over OTLP
    permissions    of files, of this process, and of a pod's volumes

The doctor changes nothing. It runs beside a framegate that serves, without a shell, on a read-only root, as any user.
"""
