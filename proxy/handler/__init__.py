"""Handlers: users' Python that sees whole frames, in processes of its own. This package exports what ``api`` does: what handlers are written with."""

from framegate.proxy.handler.api import *  # noqa: F403 (its ``__all__`` is the list)
from framegate.proxy.handler.api import __all__ as __all__
