"""From a YAML file to the model of ``framegate.proxy.config``, with every fault at once.

Processors load nothing of this package. Nothing is re-exported, because the control process uses only units, capacity and addresses while it runs and
must not load the YAML reader.
"""
