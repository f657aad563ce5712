"""The group of all commands. Importing it loads click and nothing else; what a command needs is loaded when it is called."""

import io
import sys
from typing import Any

import click

from control.cli.certificates import certificates
from control.cli.channels import channels
from control.cli.doctor import doctor
from control.cli.handlers import handlers
from control.cli.inject import inject
from control.cli.limits import limits
from control.cli.listeners import listeners
from control.cli.local import check, demo, serve
from control.cli.log import log
from control.cli.options import EXIT_INTERRUPTED, example
from control.cli.pipeline import pipeline
from control.cli.pools import pool
from control.cli.proxies import drain, status
from control.cli.tap import tap
from control.cli.taps import taps
from control.cli.upstreams import upstreams
from control.cli.users import users

__all__ = ["main"]


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from control.cli.version import version_text

        click.echo(version_text())
        ctx.exit()


class _Commands(click.Group):
    """The group; what holds for every command."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Letters that a terminal's encoding lacks are written as escapes; they end nothing."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C where a command has nothing of its own to say of it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("framegate: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
    epilog=example("framegate check --config framegate.yaml", "framegate serve --config framegate.yaml", "framegate channels list"),
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version and the build.")
def main() -> None:
    """A sidecar proxy for length-prefixed traffic: TLS, size limits, bounded memory, control over gRPC, and a tap that Spark reads.

    Exit codes: 0 good; 1 it failed; 2 wrong usage or configuration; 3 not found; 4 conflict, nothing was changed; 5 the control plane cannot be
    reached.
    """


@click.command(epilog=example('eval "$(framegate completion bash)"'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells of the choice"
    click.echo(kind(main, {}, "framegate", "_FRAMEGATE_COMPLETE").source())


for _command in (
    check, doctor, serve, demo, pipeline, channels, handlers, limits, pool, listeners, upstreams, certificates, taps, tap, users, log, status, drain,
    inject, completion,
):  # fmt: skip
    main.add_command(_command)
