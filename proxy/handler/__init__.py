"""Handlers: users' Python that sees whole frames, in processes of its own.

``api``: the interface for users, re-exported here.
``load``: from ``package.module:name`` to a handler.
``runtime``: the handlers of a process and its sockets to the processors. ``python -P -m framegate.proxy.handler`` runs it.
``processor``: the socket to one processor: requests in batches, replies in one write; ``framegate.proxy.relay.handler_wire`` defines the records.
``connection``: one connection; ``tasks``: handlers that are ``async def``; ``reply_buffer``: large replies that wait for memory of a processor.
``reporter``: the thread that talks to the control process; ``activity``, ``cells``: the state that it publishes; ``failures``: handlers that raise.
``echo``: a handler that answers each frame with the frame.
"""

from framegate.proxy.handler.api import (
    CLOSE,
    DROP,
    PASS,
    Answer,
    Close,
    Context,
    Direction,
    Drop,
    Handle,
    Handler,
    Pass,
    Replace,
    Result,
    TlsFacts,
    Verdict,
    handler,
)

__all__ = [
    "CLOSE",
    "DROP",
    "PASS",
    "Answer",
    "Close",
    "Context",
    "Direction",
    "Drop",
    "Handle",
    "Handler",
    "Pass",
    "Replace",
    "Result",
    "TlsFacts",
    "Verdict",
    "handler",
]
