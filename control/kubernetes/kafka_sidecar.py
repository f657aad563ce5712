"""A first configuration in front of a whole Kafka cluster, beside an application: of ``init``, ``inject`` and the Kustomize component.

Clients reach framegate on the loopback address only, so neither TLS nor an advertised host is needed.
"""

import json
from collections.abc import Sequence

POD_PORT = 9092  # the port of the bootstrap in a pod, where it is free
_RANGE = 100  # a port for each node id from 0 to 99
_TEXT = """\
{about}
# `framegate config explain KEY` explains a key; `framegate brokers list` shows the brokers, and the addresses that clients are told.
node: {node}
{around}
listeners:
  - name: kafka
    address: "127.0.0.1:{port}" # bootstrap.servers of clients
    upstream: brokers
    protocol: kafka
{limit}    brokers:
      ports: "{first}-{last}" # one for each broker: {first} plus its node id

upstreams:
  - name: brokers
    # If the brokers want TLS or a login: tls and sasl, see `framegate config explain upstreams.tls` and `framegate config explain upstreams.sasl`.
    kafka:
      bootstrap: {bootstrap}
"""
_MACHINE = """
admin:
  address: "unix:run/admin.sock"
"""
_POD = """
memory_pool:
  size: 128MiB # in each processor, room for the largest request

health:
  address: "0.0.0.0:9901"

telemetry:
  prometheus:
    address: "0.0.0.0:9464"
"""
_LIMIT = """\
    max_receive_size: 16MiB # of a request; above max.request.size of producers, which is 1 MiB unless they set it
"""


def kafka_configuration(bootstrap: Sequence[str], about: str, *, node: str = "kafka-sidecar", port: int = POD_PORT, in_pod: bool = True) -> str:
    """The text of a configuration.

    Args:
        bootstrap: some brokers, as ``host:port``.
        port: of the bootstrap; the ports of brokers begin 8 above it.
        in_pod: with the ports that the kubelet and Prometheus reach, the admin socket at its default, and less memory than a container has; else with
            a socket beside the file.
    """
    first = port + 8
    return _TEXT.format(
        about=about,
        node=json.dumps(node),
        around=_POD if in_pod else _MACHINE,
        limit=_LIMIT if in_pod else "",
        port=port,
        first=first,
        last=first + _RANGE - 1,
        bootstrap=json.dumps(list(bootstrap)),
    )
