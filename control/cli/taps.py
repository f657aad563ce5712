"""``framegate taps``: show and change the rules of the tap."""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from framegate.control.bounds import FIELD_NAMES
from framegate.control.cli.client import Service, calling, names_from
from framegate.control.cli.kinds import EXPIRY, LISTENER, SIZE
from framegate.control.cli.options import Change, admin_options, change_options, example, openable
from framegate.control.cli.output import field_word, field_words, print_messages, size_text, time_text

if TYPE_CHECKING:
    import grpc

    from framegate.control.v1 import tap_service_pb2 as pb2

_COMPLETION_TIMEOUT_S = 1.0
_LISTENERS, _TAPS = Service("listener"), Service("tap")
_ENUMS: Final = {"directions": "DIRECTION_", "capture": "CAPTURE_", "on_full": "ON_FULL_"}
F = TypeVar("F", bound=Callable[..., object])


def _complete(service: Service, method: str, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    def ask(channel: "grpc.Channel") -> list[str]:
        return [item.name for item in service.listed(channel, method, _COMPLETION_TIMEOUT_S)]

    address = ctx.params.get("address") or os.environ.get("FRAMEGATE_ADDRESS") or openable()
    return [CompletionItem(name) for name in names_from(address, ask) if name.startswith(incomplete)]


def _complete_rule(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(_TAPS, "ListTapRules", ctx, incomplete)


def _complete_listener(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(_LISTENERS, "ListListeners", ctx, incomplete)


_SHARE, _PERCENT = click.FloatRange(0.0, 1.0), click.FloatRange(0.0, 100.0)
_RULE_OPTIONS: Final[tuple[tuple[str, str, dict[str, Any], str], ...]] = (
    ("--listener", "listeners", {"type": LISTENER, "shell_complete": _complete_listener}, "Frames of this listener. May be repeated. [default: all]"),
    ("--direction", "directions", {"type": click.Choice(["request", "response"])}, "Frames of this direction. May be repeated. [default: both]"),
    ("--principal", "principals", {}, "Frames of clients with this principal. May be repeated."),
    ("--network", "networks", {}, "Frames of clients in this network, for example 10.0.0.0/8. May be repeated."),
    ("--min-size", "min_size_bytes", {"type": SIZE}, "Frames whose body has at least this size, for example 1KiB."),
    ("--max-size", "max_size_bytes", {"type": SIZE}, "Frames whose body has at most this size; 0 means unlimited."),
    ("--api", "apis", {}, "Requests of this Kafka API, for example Produce, and their responses. May be repeated."),
    ("--client", "clients", {}, "Frames of Kafka clients whose client.id matches, for example 'billing-*'. May be repeated."),
    ("--capture", "capture", {"type": click.Choice(["full", "lengths", "hash"])}, "What to store of each body: all of it, only its length, or "
     "a hash.  [default: full]"),
    ("--max-frame-bytes", "max_frame_bytes", {"type": SIZE}, "Number of body bytes to store of each frame; 0 means all."),
    ("--blank", "blank", {}, "Range of body bytes to store as zeros, for example 0-15 or 64-. May be repeated."),
    ("--hash", "hash", {}, "Range of body bytes to store as a hash, for example 0-15 or 64-. May be repeated."),
    ("--sample-connections", "sample_connections", {"type": _SHARE}, "Fraction of connections to record, 0 to 1."),
    ("--sample-frames", "sample_frames", {"type": _SHARE}, "Fraction of frames to record, 0 to 1."),
    ("--expires", "expires", {"type": EXPIRY}, "When the rule expires: 10m from now, 2030-01-31T12:00:00Z, or never."),
    ("--on-full", "on_full", {"type": click.Choice(["drop", "mute"])}, "When the log cannot keep up: drop frames from the log (a gap row "
     "counts them), or mute the client."),
    ("--max-loss-percent", "max_loss_percent", {"type": _PERCENT}, "Turn the rule off when it loses more than this percentage of frames. 0: never."),
    ("--max-cpu-percent", "max_cpu_percent", {"type": _PERCENT}, "Turn the rule off when it uses more than this percentage of a CPU. 0: never."),
)  # fmt: skip


def _rule_options(function: F) -> F:
    """The options of a rule, named like its keys in the configuration; those with ``May be repeated`` in their help may be."""
    for flag, name, kind, text in reversed(_RULE_OPTIONS):
        function = click.option(flag, name, multiple="May be repeated" in text, help=text, **kind)(function)
    return function


def _before_option(text: str) -> Callable[[F], F]:
    return click.option("--before", shell_complete=_complete_rule, help=text)


@click.group(epilog=example("framegate taps add debug --listener kafka --api Produce --client 'billing-*' --expires 10m"))
def taps() -> None:
    """Tap rules: they choose the frames that the tap records. The first rule that matches a frame decides."""


@taps.command("list", epilog=example("framegate taps list --output json"))
@admin_options
def list_(address: str, output: str) -> None:
    """List the tap rules, in their order."""
    with calling(address) as channel:
        found = _TAPS.listed(channel, "ListTapRules")
    _print(found, output, "there are no tap rules")


@taps.command(
    epilog=example("framegate taps add sizes --capture lengths", "framegate taps add debug --sample-frames 0.01 --expires 10m --before sizes")
)
@click.argument("name")
@_rule_options
@_before_option("Insert the rule before this one.  [default: at the end]")
@change_options("reason", "dry_run")
@admin_options
def add(name: str, before: str | None, change: Change, address: str, output: str, **values: Any) -> None:
    """Add a rule, in all processors or in none. Returns when it is in force, also for open connections.

    Changes are lost at a restart, when the configuration file applies again.
    """
    rule, _ = _rule(name, values)
    with calling(address, change=not change.dry_run) as channel:
        answer = _TAPS.change(channel, "CreateTapRule", change, tap_rule=rule, before=before or "")
    _print([answer.tap_rule], output)


@taps.command(
    "set",
    short_help="Change a rule, or move it.",
    epilog=example("framegate taps set debug --sample-frames 0.1 --expires 1h", "framegate taps set debug --last --clear listeners"),
)
@click.argument("name", shell_complete=_complete_rule)
@_rule_options
@click.option("--clear", multiple=True, help="Reset a key of the rule to its default, for example networks. May be repeated.")
@_before_option("Move the rule before this one.")
@click.option("--last", is_flag=True, help="Move the rule to the end.")
@change_options()
@admin_options
def set_(name: str, clear: tuple[str, ...], before: str | None, last: bool, change: Change, address: str, output: str, **values: Any) -> None:
    """Change the given keys of a rule, in all processors or in none. Returns when the change is in force."""
    if before and last:
        raise click.UsageError("give --before or --last, not both")
    rule, paths = _rule(name, values)
    paths += [_cleared(word) for word in clear]
    if len(set(paths)) != len(paths):
        raise click.UsageError("--clear names a key that another option sets, or names it twice")
    if not paths and not before and not last:
        raise click.UsageError("give at least one change")
    moved: dict[str, Any] = {"before": before or ""} if before or last else {}
    with calling(address, change=not change.dry_run) as channel:
        answer = _TAPS.change(channel, "UpdateTapRule", change, tap_rule=rule, update_mask={"paths": paths}, **moved)
    _print([answer.tap_rule], output)


@taps.command(epilog=example("framegate taps remove debug"))
@click.argument("name", shell_complete=_complete_rule)
@change_options()
@admin_options
def remove(name: str, change: Change, address: str, output: str) -> None:
    """Remove a rule, in all processors or in none. Prints the remaining rules."""
    with calling(address, change=not change.dry_run) as channel:
        _TAPS.change(channel, "DeleteTapRule", change, name=name)
        left = _TAPS.listed(channel, "ListTapRules")
    _print(left, output)


def _cleared(word: str) -> str:
    """The field of the message for a configuration key."""
    fixed = {"name", "etag", "state", "stops", "ttl"}
    names = [field.name for field in _TAPS.messages.TapRule.DESCRIPTOR.fields if field.name not in fixed]
    known = {FIELD_NAMES.get(name, name).removesuffix("_ns"): name for name in names}
    path: str = known.get(word, word)
    if path not in known.values():
        words = sorted(known)
        raise click.BadParameter(f"{word!r} is not a key of a rule; the keys are {', '.join(words)}", param_hint="--clear")
    return path


def _rule(name: str, values: dict[str, Any]) -> "tuple[pb2.TapRule, list[str]]":
    """The message for the options given, and the names of its fields that are set."""
    given = {field: value for field, value in values.items() if value is not None and value != ()}
    expires = given.pop("expires", None)
    for field, prefix in _ENUMS.items():
        value = given.get(field)
        if value is not None:
            given[field] = [f"{prefix}{each.upper()}" for each in value] if isinstance(value, tuple) else f"{prefix}{value.upper()}"
    rule = _TAPS.messages.TapRule(name=name, **given)
    return rule, [*given, *([] if expires is None else [_expire(rule, expires)])]


def _expire(rule: "pb2.TapRule", value: tuple[str, int]) -> str:
    kind, number = value
    if kind == "ttl":
        rule.ttl.FromMilliseconds(number)
        return "ttl"
    if number:
        rule.expire_time.FromNanoseconds(number)
    return "expire_time"


def _print(found: "list[pb2.TapRule]", output: str, none: str = "") -> None:
    print_messages(found, output, ("NAME", "LISTENERS", "DIRECTIONS", "MATCHES", "CAPTURE", "SAMPLED", "WHEN FULL", "STATE"), _cells, none)


def _cells(rule: "pb2.TapRule") -> tuple[str, ...]:
    return (
        rule.name, ",".join(rule.listeners) or "all", ",".join(field_words(rule, "directions")), " ".join(_conditions(rule)) or "all",
        " ".join(_kept(rule)), " ".join(_sampled(rule)) or "all", field_word(rule, "on_full"), "; ".join(_state(rule)),
    )  # fmt: skip


def _conditions(rule: "pb2.TapRule") -> Iterator[str]:
    """The conditions of a rule besides listener and direction."""
    for name, entries in (("principal", rule.principals), ("network", rule.networks), ("api", rule.apis), ("client", rule.clients)):
        if entries:
            yield f"{name}={','.join(entries)}"
    if rule.min_size_bytes:
        yield f"size>={size_text(rule.min_size_bytes)}"
    if rule.max_size_bytes:
        yield f"size<={size_text(rule.max_size_bytes)}"


def _kept(rule: "pb2.TapRule") -> Iterator[str]:
    yield field_word(rule, "capture")
    if rule.max_frame_bytes:
        yield f"first {size_text(rule.max_frame_bytes)}"
    for name, entries in (("blank", rule.blank), ("hash", rule.hash)):
        if entries:
            yield f"{name} {','.join(entries)}"


def _sampled(rule: "pb2.TapRule") -> Iterator[str]:
    if rule.sample_connections != 1:
        yield f"{rule.sample_connections:g} of connections"
    if rule.sample_frames != 1:
        yield f"{rule.sample_frames:g} of frames"


def _state(rule: "pb2.TapRule") -> Iterator[str]:
    yield field_word(rule, "state")
    if rule.HasField("expire_time"):
        yield f"{'since' if rule.state == rule.STATE_EXPIRED else 'until'} {time_text(rule.expire_time.ToJsonString())}"
    for stop in rule.stops:
        cause = field_word(stop, "cause")
        since = time_text(stop.stop_time.ToJsonString())
        yield f"off in processor {stop.processor_slot} since {since}: {cause} {stop.percent:g} % is above {stop.limit_percent:g} %"
