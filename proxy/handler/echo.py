"""The echo handler, ``framegate.proxy.handler.echo:echo``: without an upstream it answers every frame with itself; with one, every frame goes on."""

from framegate.proxy.handler.api import Context


def echo(frame: bytes, context: Context) -> bytes:
    """Answers every frame with itself."""
    return frame
