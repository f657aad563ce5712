"""Connections before a processor has them, and the addresses of upstreams.

    listening      one listening socket
    acceptor       accepts on all of them, on a thread of its own
    admission      connection quotas in the acceptor; ``quotas``: their state
    delayed_close  rejected sockets that are closed later
    resolver       names of upstream endpoints become addresses, on threads
    api_versions   which requests an upstream understands

Processors are known only as sockets that take connections (``acceptor.Target``). Nothing is re-exported.
"""
