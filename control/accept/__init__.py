"""Connections before a processor has them, and the addresses of upstreams.

Processors are known only as sockets that take connections (``acceptor.Target``). Nothing is re-exported.
"""
