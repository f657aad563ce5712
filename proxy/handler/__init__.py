"""Handlers: the user's Python on whole frames, in processes of its own.

``api``: what a handler is written with; it says what a handler is, and is re-exported here.
``load``: from ``package.module:name`` to a handler.
``runtime``: what runs in a handler process: its handlers, the sockets to the processors. ``python -P -m proxy.handler`` runs it.
``processor``: the socket to one processor: requests in batches, replies in one write; ``proxy.relay.handler_wire`` has its records;
``connection``: a connection as a handler process knows it; ``tasks``: handles that are ``async def``; ``kept_answers``: long answers that wait.
``reporter``: the thread that speaks with control, whatever a handler does; ``activity``: what there is to be told; ``cells``: where it is told.
``echo``: a handler that answers every frame with itself.
"""

from proxy.handler.api import (
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
