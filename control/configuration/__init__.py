"""From a YAML file to the model of ``proxy.config``, every fault at once.

    load      ``examine(path)`` names faults and warnings, ``load(path)`` gives the model; ``validate(mapping)`` for values without a file
    child     ``load`` in a child process, for who goes on running
    reading   the YAML file becomes a ``document``: plain values with the line of each
    schema    names, units, ranges; pydantic judges types
    rules     what must hold between keys; ``pool_rules`` and ``tap_rules`` of these; ``values`` as rules ask for them
    tap_rule  one that was never in a file
    files     what a certificate's file holds; ``certificate`` says what is in it, ``tls_files`` what processors are to serve
    machine   what this machine must give; ``places`` tries folders, sockets and addresses
    paths     relative paths become absolute
    units     ``100MiB``, ``30s``
    cgroup    what the container allows; ``capacity``: what follows for processors and the memory pool
    fault     what is wrong, and where

Nothing here is loaded in a processor. Nothing is re-exported: the control process uses addresses, units and capacity as long as it runs, and must
not pay for the reader.
"""
