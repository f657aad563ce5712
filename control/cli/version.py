"""The text of ``framegate --version``: the version, and whether the data path is compiled."""

import importlib.metadata
import importlib.util
import platform

__all__ = ["is_compiled", "version_text"]


def is_compiled() -> bool:
    """Whether the data path is compiled. Imports none of it."""
    spec = importlib.util.find_spec("framegate.proxy.network.framing")
    return spec is not None and spec.origin is not None and spec.origin.endswith(".so")


def version_text() -> str:
    """The version as one line."""
    try:
        version = importlib.metadata.version("framegate")
    except importlib.metadata.PackageNotFoundError:
        version = "0 (a checkout that is not installed)"
    build = "compiled" if is_compiled() else "plain Python"
    return f"framegate {version} ({build}; Python {platform.python_version()})"
