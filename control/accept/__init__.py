"""Connections before a processor has them, and the addresses of upstreams.

    listening      listening sockets, of listeners and of brokers
    acceptor       accepts on all of them, on a thread of its own
    admission      connection quotas in the acceptor, and rejected connections that are closed later; ``quotas``: the state of the quotas
    resolver       names of upstream endpoints become addresses, on threads
    api_versions   which requests an upstream understands
    broker_list    the brokers of a Kafka cluster, asked over a ``broker_connection``, after a ``broker_login`` if there is one
    broker_ports   which port of a listener each broker has

Processors are known only as sockets that take connections (``acceptor.Target``). Nothing is re-exported.
"""
