"""Options that several commands share, and the examples at the end of a help text."""

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from framegate.control.cli.kinds import ADDRESS

DEFAULT_ADDRESS: Final = "unix:/run/framegate/admin.sock"
EXIT_NOT_FOUND: Final = 3
EXIT_CONFLICT: Final = 4
EXIT_INTERRUPTED: Final = 130  # the exit code that shells give a program ended by SIGINT
ADDRESS_VARIABLE: Final = "FRAMEGATE_ADDRESS"
TLS_FILES: Final = ("tls.crt", "tls.key", "ca.crt")
"""As in a Secret of Kubernetes: the certificate of the caller, its key, the authorities of the server."""
_TLS: Final = "framegate.tls"

F = TypeVar("F", bound=Callable[..., object])
_CHANGE: Final = {
    "etag": click.option("--etag", default="", help="Change it only if it still has this etag (see `--output json`)."),
    "reason": click.option("--reason", default="", help="The reason, for the audit log."),
    "dry_run": click.option("--dry-run", is_flag=True, help="Check the change and show its result, but do not make it."),
}


class Change(NamedTuple):
    """The options that all commands have that change something."""

    etag: str = ""
    reason: str = ""
    dry_run: bool = False


def change_options(*names: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """``--etag``, ``--reason`` and ``--dry-run``, or those of ``names``, as the parameter ``change`` of the command."""

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> object:
            given = {name: values.pop(name) for name in names or _CHANGE}
            return function(*args, change=Change(**given), **values)

        decorated: Callable[..., object] = command
        for name in reversed(names or tuple(_CHANGE)):
            decorated = _CHANGE[name](decorated)
        return decorated

    return decorate


def output_option(function: F) -> F:
    """``--output``."""
    return click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format.")(function)


def admin_options(function: F) -> F:
    """``--address`` and ``--output``."""
    return address_option(output_option(function))


def address_option(function: F) -> F:
    """``--address`` and ``--tls``."""
    tls = click.option(
        "--tls",
        type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
        envvar="FRAMEGATE_TLS",
        show_envvar=True,
        expose_value=False,
        callback=_keep_tls,
        help=f"Folder with {', '.join(TLS_FILES)}, for an address host:port of admin.tcp.",
    )
    return click.option(
        "--address",
        envvar=ADDRESS_VARIABLE,
        type=ADDRESS,
        default=openable,
        show_default=f"{DEFAULT_ADDRESS}, or operate.sock or view.sock beside it if this user may open only that",
        show_envvar=True,
        callback=_not_empty,
        help="Address of the admin API: unix:PATH, or host:port.",
    )(tls(function))


def openable() -> str:
    """The default address: of the highest role whose socket this user may open; that of the role admin, if there is none."""
    folder = os.path.dirname(DEFAULT_ADDRESS)
    found = (f"{folder}/{role}.sock" for role in ("admin", "operate", "view"))
    return next((address for address in found if os.access(address.removeprefix("unix:"), os.W_OK)), DEFAULT_ADDRESS)


def _keep_tls(ctx: click.Context, param: click.Parameter, value: pathlib.Path | None) -> None:
    del param
    ctx.meta[_TLS] = value


def tls_folder() -> pathlib.Path | None:
    """The folder of ``--tls`` of the command that runs."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_TLS)


def _not_empty(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse an empty variable: a script that fails to set it must not change the framegate at the default address."""
    if ctx.get_parameter_source("address") is ParameterSource.DEFAULT and os.environ.get(ADDRESS_VARIABLE) == "":
        raise click.BadParameter(f"{ADDRESS_VARIABLE} is empty: set it to unix:PATH, or unset it to use {DEFAULT_ADDRESS}", ctx, param)
    return value


def example(*lines: str) -> str:
    """The examples at the end of a help text."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
