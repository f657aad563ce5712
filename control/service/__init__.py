"""The gRPC servers: ``framegate.control.v1`` on a Unix socket, and probes on plaintext ports of their own.

``start(parts, config)`` is all that ``framegate.control.runtime`` needs. It imports grpc, so this package is imported late.
"""

from framegate.control.service.server import Service, start

__all__ = ["Service", "start"]
