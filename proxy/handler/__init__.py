"""Handlers: users' Python that sees whole frames, in processes of its own. This package exports what ``api`` does: what handlers are written with.

============ ====================================================================================================
load         from ``package.module:name`` to a handler
runtime      the handlers of a process, and its sockets to the processors; ``python -P -m framegate.proxy.handler`` runs it
processor    the socket to one processor: requests in batches, replies in one write (``relay.handler_wire`` defines the records)
connection   one connection: results and failures of its handler; handlers that are ``async def``
reply_buffer large replies that wait until a processor has memory for them
reporter     the thread that talks to the control process
activity     the state of the process, and the shared cells that publish it
echo         a handler that answers each frame with the frame
============ ====================================================================================================
"""

from framegate.proxy.handler.api import *  # noqa: F403 (its ``__all__`` is the list)
from framegate.proxy.handler.api import __all__ as __all__
