"""Connections before a processor has them, and the addresses of upstreams.

    listening      one listening socket
    acceptor       accepts on all of them, on a thread of its own
    admission      connection quotas in the acceptor, and rejected connections that are closed later; ``quotas``: the state of the quotas
    resolver       names of upstream endpoints become addresses, on threads
    api_versions   which requests an upstream understands

Processors are known only as sockets that take connections (``acceptor.Target``). Nothing is re-exported.
"""
