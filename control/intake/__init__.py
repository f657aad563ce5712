"""What comes in from outside before a processor has it: connections, and the addresses that names stand for.

    listening  one listening socket
    acceptor   all of them, on a thread of its own: quotas, and hand-over to the processors
    resolver   names of upstream endpoints become addresses, on threads of their own

It knows processors only as the sockets that take connections (``acceptor.Target``). Nothing is re-exported.
"""
