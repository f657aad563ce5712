"""From a YAML file to the model of ``proxy.config``, every fault at once.

    load      ``check(path)`` names the faults, ``load(path)`` gives the model; ``validate(mapping)`` for values without a file
    document  the YAML document with the line of each key
    schema    names, units, ranges, types
    rules     what must hold between keys; ``files`` looks into certificates
    paths     relative paths become absolute
    address   ``host:port``, ``[v6]:port``, ``unix:PATH``
    units     ``100MiB``, ``30s``
    capacity  the container's CPUs and memory
    fault     what is wrong, and where

Nothing here is loaded in a processor.
"""

from control.configuration.fault import ConfigurationError, Fault
from control.configuration.load import check, load, validate

__all__ = ["ConfigurationError", "Fault", "check", "load", "validate"]
