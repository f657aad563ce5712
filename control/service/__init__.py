"""The gRPC face of the control plane: ``framegate.control.v1`` on a Unix socket, and grpc.health.v1 on a plaintext port of its own.

    server       the two servers: start, lock and mode of the socket, reflection, stop
    interceptor  around every call: its duration, its audit row, its errors
    access       one table: which role a method needs, and whether a call is audited
    status       one table: which error of ``framegate.control.errors`` is which gRPC code, with which details
    validate     what a request may say; every wrong field is named at once
    convert      rows and statuses of the plane become messages
    paging       pages and tokens of lists that lie in memory
    closed       the channels that closed last
    channels, limits, pools, listeners, upstreams, certificates, users, proxies   the servicers, one for each service
    health       startup, liveness and readiness over gRPC; ``probes``: the listeners of that and of HTTP

``start(parts, config)`` is all that ``framegate.control.runtime`` needs. It imports grpc, so import this package late.
"""

from framegate.control.service.server import Service, start

__all__ = ["Service", "start"]
