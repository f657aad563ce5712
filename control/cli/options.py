"""Options that many commands share, and how their help ends."""

from collections.abc import Callable
from typing import Final, TypeVar

import click

__all__ = ["DEFAULT_ADDRESS", "admin_options", "example", "output_option"]

DEFAULT_ADDRESS: Final = "unix:/run/framegate/admin.sock"

F = TypeVar("F", bound=Callable[..., object])


def output_option(function: F) -> F:
    """``--output``."""
    return click.option(
        "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Tables for people, JSON for programs."
    )(function)


def admin_options(function: F) -> F:
    """``--address`` and ``--output``."""
    address = click.option(
        "--address", envvar="FRAMEGATE_ADDRESS", default=DEFAULT_ADDRESS, show_default=True, show_envvar=True, help="Where the control plane is."
    )
    return address(output_option(function))


def example(*lines: str) -> str:
    """The end of a help text."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
