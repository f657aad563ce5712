"""The group of all commands. It imports only click; the module of a command is imported when the command is called, completed or listed.

A new command is a function in a module of this package and an entry in ``_MODULES``.
"""

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from framegate.control.cli.kinds import DURATION
from framegate.control.cli.options import EXIT_INTERRUPTED, example
from framegate.control.cli.output import exit_unwritten, print_line, print_note, write_error, write_text
from framegate.control.version import installed_version

_MODULES: Final = {
    **dict.fromkeys(("check", "demo", "serve"), "local"),
    **dict.fromkeys(("drain", "status"), "proxies"),
    "completion": "commands",
    "pool": "pools",
    "kafka-rules": "kafka_rules",
    **dict.fromkeys(("brokers", "upstreams"), "listeners"),
    "events": "log",
    **{name: name for name in ("certificates", "channels", "config", "doctor", "handlers", "init", "inject", "limits", "listeners", "log")},
    **{name: name for name in ("pipeline", "tap", "taps", "top", "users", "webhook")},
    "explain": "explanations",
}  # the module of each command

_PAGES: Final = {
    **dict.fromkeys(("init", "completion"), "getting-started"),
    **dict.fromkeys(
        ("check", "config", "doctor", "serve", "channels", "events", "explain", "listeners", "log", "status", "drain", "top"), "operating"
    ),
    "upstreams": "upstreams",
    "handlers": "handlers",
    "brokers": "kafka",
    **dict.fromkeys(("certificates", "users"), "identity"),
    **dict.fromkeys(("inject", "webhook"), "kubernetes"),
    "kafka-rules": "kafka",
    **dict.fromkeys(("limits", "pool"), "limits"),
    "pipeline": "spark",
    **dict.fromkeys(("tap", "taps"), "tap"),
}  # the page of the manual that the help of a command names

_LINE: Final = "framegate.line"
_OVER_PODS: Final = (("status",), ("channels", "list"), ("drain",))  # Commands that ``--kube`` runs; each is decorated with ``pods.over_pods``
_NAMES_OVER_PODS: Final = ", ".join(map(" ".join, _OVER_PODS))
_INJECTED: Final = "framegate.io/sidecar=true"
"""The label of pods that got framegate by inject, the webhook or the Kustomize component; ``kubernetes.sidecar`` has it."""
_POD_TIMEOUT_MS: Final = 30_000


def version_text() -> str:
    """The version, and whether the data path is compiled, as one line. Imports nothing of the data path."""
    import importlib.util
    import platform

    spec = importlib.util.find_spec("framegate.proxy.network.framing")
    build = "compiled" if spec is not None and spec.origin is not None and spec.origin.endswith(".so") else "plain Python"
    version = installed_version() or "0 (a checkout that is not installed)"
    return f"framegate {version} ({build}; Python {platform.python_version()})"


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        print_line(version_text())
        ctx.exit()


@contextlib.contextmanager
def _output_checked() -> Iterator[None]:
    """Give click's own output (help, errors of usage) the exit codes and messages of ``output`` when it cannot be written."""
    try:
        yield
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        write_error(text.getvalue())
        sys.exit(error.exit_code)
    except BrokenPipeError as error:
        exit_unwritten(error)
    except OSError:
        write_text("")  # text that could not be written is still in the buffer, so this fails again, and exits
        raise


class _Commands(click.Group):
    """The group of all commands."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command. Characters that the terminal's encoding lacks are written as escapes."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        command = getattr(importlib.import_module(f"{__package__}.{_MODULES[cmd_name]}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command), "_MODULES names a function that is not a command"
        manual = f"Manual: deploy/docs/{_PAGES.get(cmd_name)}.md\n\n"
        if cmd_name in _PAGES and not (command.epilog or "").startswith(manual):
            command.epilog = manual + (command.epilog or "")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a command line, which is kept for ``--kube``."""
        ctx.meta[_LINE] = tuple(args)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the options before the name of the command, such as ``--help``."""
        with _output_checked():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C ends it with a message and exit code 130."""
        try:
            with _output_checked():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            print_note("interrupted")
            ctx.exit(EXIT_INTERRUPTED)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
    epilog=example(
        "framegate init demo",
        "framegate check --config demo/framegate.yaml",
        "framegate serve --config demo/framegate.yaml > demo/framegate.log &",
        "python3 demo/client.py hello",
        "framegate channels list --address unix:demo/run/admin.sock",
        "framegate --kube -n shop -l app=orders channels list --filter 'client_id=billing-*'",
    ),
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version and the build.")
@click.option(
    "--kube", is_flag=True, help=f"Run {_NAMES_OVER_PODS} in the framegate container of each chosen pod, by kubectl exec, and show one table."
)
@click.option("--selector", "-l", help=f"With --kube: the labels of the pods, for example app=orders.  [default: {_INJECTED}]")
@click.option("--namespace", "-n", help="With --kube: the namespace of the pods.  [default: that of kubectl]")
@click.option("--context", help="With --kube: a context of the kubeconfig.  [default: that of kubectl]")
@click.option("--pod-timeout", type=DURATION, help="With --kube: time limit of each pod, without that of a drain.  [default: 30s]")
def main(kube: bool, **chosen: Any) -> None:
    """A network proxy for protocols that send length-prefixed frames over TCP: TLS, frame size limits, bounded memory, control over gRPC, and a
    record of frames (the tap) that Spark reads.

    Exit codes: 0 success; 1 failure; 2 wrong usage or configuration; 3 not found; 4 conflict, nothing was changed; 5 the admin API cannot be
    reached. Other codes are in the help of the command.

    With --kube, 3 means that no pod matches, 6 that some pods gave no good answer, and 5 that none did; each is named with the reason.

    Manual: README.md and the pages in deploy/docs.
    """
    if not kube:
        given = [f"--{name.replace('_', '-')}" for name, value in chosen.items() if value is not None]
        if given:
            raise click.UsageError(f"{', '.join(given)} needs --kube")
        return
    ctx = click.get_current_context()
    line = ctx.meta[_LINE]
    if not any(line[: len(words)] == words for words in _OVER_PODS):
        raise click.UsageError(f"with --kube these commands run: {_NAMES_OVER_PODS}")
    from framegate.control.cli.pods import Fleet, choose

    line = tuple(word for word in line if word != "--yes")
    timeout_s = (chosen["pod_timeout"] or _POD_TIMEOUT_MS) / 1000
    choose(ctx, Fleet(chosen["selector"] or _INJECTED, chosen["namespace"], chosen["context"], timeout_s, line))


@click.command(epilog=example('eval "$(framegate completion bash)"'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells of the choice"
    write_text(kind(main, {}, "framegate", "_FRAMEGATE_COMPLETE").source() + "\n")
