"""From a YAML file to the model of ``framegate.proxy.config``, with every fault at once.

    load       ``examine(path)`` gives faults and warnings, ``load(path)`` the model; ``validate(mapping)`` takes values without a file
    child      ``load`` in a child process, for a process that continues to run
    reading    the YAML file becomes a ``document``: plain values with the line of each, and faults
    schema     the document becomes the model: names, units, ranges, types, paths
    rules      rules between keys; by section in ``listener_rules``, ``limit_rules``, ``sasl_rules``, ``tap_rules`` and ``tls_rules``
    machine    what this machine must provide: folders, sockets, addresses, memory
    tls_files  the TLS files that a configuration names, and what certificates and revocation lists say
    units      ``100MiB``, ``30s``
    cgroup     the limits of the container; ``capacity``: what follows for processors and the memory pool
    manual     what each key means (``manual.yaml``), for ``framegate config explain`` and the pages in ``deploy/``

Processors load nothing of this package. Nothing is re-exported, because the control process uses only units, capacity and addresses while it runs and
must not load the YAML reader.
"""
