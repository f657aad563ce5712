"""Options that many commands share, and how their help ends."""

import os
from collections.abc import Callable
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from control.cli.kinds import ADDRESS

__all__ = ["ADDRESS_VARIABLE", "DEFAULT_ADDRESS", "EXIT_INTERRUPTED", "address_option", "admin_options", "example", "output_option"]

DEFAULT_ADDRESS: Final = "unix:/run/framegate/admin.sock"
EXIT_INTERRUPTED: Final = 130
"""What a shell says of a program that SIGINT ended."""
ADDRESS_VARIABLE: Final = "FRAMEGATE_ADDRESS"

F = TypeVar("F", bound=Callable[..., object])


def output_option(function: F) -> F:
    """``--output``."""
    return click.option(
        "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Tables for people, JSON for programs."
    )(function)


def admin_options(function: F) -> F:
    """``--address`` and ``--output``."""
    return address_option(output_option(function))


def address_option(function: F) -> F:
    """``--address``."""
    return click.option(
        "--address",
        envvar=ADDRESS_VARIABLE,
        type=ADDRESS,
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        callback=_not_empty,
        help="Where the control plane is: unix:PATH.",
    )(function)


def _not_empty(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """An empty variable is a mistake of a script: what was meant for another framegate must not reach the one at the default address."""
    if ctx.get_parameter_source("address") is ParameterSource.DEFAULT and os.environ.get(ADDRESS_VARIABLE) == "":
        raise click.BadParameter(f"{ADDRESS_VARIABLE} is empty: write unix:PATH, or unset it for {DEFAULT_ADDRESS}", ctx, param)
    return value


def example(*lines: str) -> str:
    """The end of a help text."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
