"""The gRPC servers: ``framegate.control.v1`` on a Unix socket, and probes on plaintext ports of their own.

    server       the API's server: start, lock and mode of the socket, reflection, stop
    interceptor  runs around every call: its duration, its audit row, its errors
    access       the methods, as the .proto files describe them: which role each needs, and whether a call is audited
    request_ids  the first answer for calls that are repeated
    update       the one implementation of an update: mask, values, ranges, audit row
    status       the table of errors: the gRPC code and details of each error of ``framegate.control.errors``
    validate     checks of requests, which report every wrong field at once; pages of lists
    convert      rows of channels as messages, ids as text
    quoting      requests in audit rows
    channels, configuration, limits, pools, resources, certificates, users, logs, taps, proxies   the servicers
    probes       startup, liveness and readiness over gRPC and HTTP

``start(parts, config)`` is all that ``framegate.control.runtime`` needs. It imports grpc, so this package is imported late.
"""

from framegate.control.service.server import Service, start

__all__ = ["Service", "start"]
