"""From a YAML file to the model of ``framegate.proxy.config``, every fault at once.

    load      ``examine(path)`` names faults and warnings, ``load(path)`` gives the model; ``validate(mapping)`` for values without a file
    child     ``load`` in a child process, for a process that goes on running
    reading   the YAML file becomes a ``document``: plain values with the line of each, and faults
    schema    names, units, ranges, types, paths: the document becomes the model
    rules     what must hold between keys; ``listener_rules``, ``limit_rules``, ``sasl_rules``, ``tap_rules`` and ``tls_rules`` of these
    files     what a certificate's file holds; ``certificate`` says what is in it, ``tls_files`` what processors are to serve
    machine   what this machine must give; ``places`` tries folders, sockets and addresses
    units     ``100MiB``, ``30s``
    cgroup    what the container allows; ``capacity``: what follows for processors and the memory pool
    manual    what each key means (``manual.yaml``), for ``framegate explain`` and the pages in ``deploy/``

Nothing here is loaded in a processor. Nothing is re-exported: the control process uses addresses, units and capacity as long as it runs, and must
not pay for the reader.
"""
