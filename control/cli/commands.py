"""The group of all commands. Importing it loads click and nothing else; what a command needs is loaded when it is called."""

from typing import Any, Final

import click

from control.cli.channels import channels
from control.cli.limits import limits
from control.cli.listeners import listeners
from control.cli.local import check, demo, pipeline, serve
from control.cli.options import example
from control.cli.pools import pool
from control.cli.proxies import drain, status
from control.cli.upstreams import upstreams

__all__ = ["EXIT_INTERRUPTED", "main"]

EXIT_INTERRUPTED: Final = 130
"""128 and SIGINT."""


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from control.cli.version import version_text

        click.echo(version_text())
        ctx.exit()


class _Main(click.Group):
    """The group; Ctrl-C ends any of its commands with one line and the code that shells expect."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("framegate: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
    epilog=example("framegate check --config framegate.yaml", "framegate serve --config framegate.yaml", "framegate channels list"),
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version and the build.")
def main() -> None:
    """A sidecar proxy for length-prefixed traffic: TLS, size limits, bounded memory, control over gRPC, and a tap that Spark reads."""


@click.command(epilog=example('eval "$(framegate completion bash)"'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells of the choice"
    click.echo(kind(main, {}, "framegate", "_FRAMEGATE_COMPLETE").source())


for _command in (check, serve, demo, pipeline, channels, limits, pool, listeners, upstreams, status, drain, completion):
    main.add_command(_command)
