"""asyncio without TLS, until a connection of the control process needs it.

asyncio imports ssl if it can. OpenSSL takes 5 MiB, and processors, not control, terminate the TLS of listeners and upstreams.
"""

import importlib
import sys


def import_without_tls() -> None:
    """Import asyncio as if there were no ssl; ssl itself can be imported afterwards. Nothing happens if one of both is there already. Call it before
    there are threads.
    """
    if "asyncio" in sys.modules or "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # an import of it raises ImportError
    try:
        importlib.import_module("asyncio")
    finally:
        del sys.modules["ssl"]


def load() -> None:
    """Let asyncio make connections with TLS. Event loop only."""
    import ssl
    from asyncio import base_events, selector_events, sslproto

    if vars(base_events)["ssl"] is None:
        importlib.reload(sslproto)
        vars(base_events)["ssl"] = vars(selector_events)["ssl"] = ssl
