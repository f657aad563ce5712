"""``framegate taps``: show and change the rules of the tap."""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from framegate.control.bounds import FIELD_NAMES
from framegate.control.cli.kinds import LISTENER, SIZE, Expiry
from framegate.control.cli.options import DEFAULT_ADDRESS, Change, admin_options, change_options, example
from framegate.control.cli.output import as_dict, print_json, print_note, print_table, size_text, time_text, word

if TYPE_CHECKING:
    import grpc

    from framegate.control.v1 import tap_service_pb2 as pb2
    from framegate.control.v1 import tap_service_pb2_grpc as pb2_grpc

__all__ = ["taps"]

_COMPLETION_TIMEOUT_S = 1.0
F = TypeVar("F", bound=Callable[..., object])


def _complete(ask: "Callable[[grpc.Channel], list[str]]", ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    from framegate.control.cli.client import names_from

    address = ctx.params.get("address") or os.environ.get("FRAMEGATE_ADDRESS") or DEFAULT_ADDRESS
    return [CompletionItem(name) for name in names_from(address, ask) if name.startswith(incomplete)]


def _complete_rule(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(lambda channel: [rule.name for rule in _listed(channel, _COMPLETION_TIMEOUT_S)], ctx, incomplete)


def _complete_listener(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    def ask(channel: "grpc.Channel") -> list[str]:
        from framegate.control.v1 import listener_service_pb2
        from framegate.control.v1.listener_service_pb2_grpc import ListenerServiceStub

        page = ListenerServiceStub(channel).ListListeners(listener_service_pb2.ListListenersRequest(), timeout=_COMPLETION_TIMEOUT_S)
        return [item.name for item in page.listeners]

    return _complete(ask, ctx, incomplete)


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
    ("--expires", "expires", {"type": Expiry()}, "When the rule expires: 10m from now, 2030-01-31T12:00:00Z, or never."),
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
    from framegate.control.cli.client import CALL_TIMEOUT_S, calling

    with calling(address) as channel:
        found = _listed(channel, CALL_TIMEOUT_S)
    _print(found, output)
    if not found and output == "table":
        print_note("there are no tap rules")


def _listed(channel: "grpc.Channel", timeout_s: float) -> "list[pb2.TapRule]":
    from framegate.control.cli.client import pages
    from framegate.control.v1 import tap_service_pb2 as pb2
    from framegate.control.v1 import tap_service_pb2_grpc as pb2_grpc

    list_page = pb2_grpc.TapServiceStub(channel).ListTapRules
    return [item for page in pages(list_page, pb2.ListTapRulesRequest(), timeout_s) for item in page.tap_rules]


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
    from framegate.control.v1.tap_service_pb2 import CreateTapRuleRequest

    rule, _ = _rule(name, values)
    request = CreateTapRuleRequest(tap_rule=rule, before=before or "")
    _print([_change(address, lambda stub: stub.CreateTapRule, request, change).tap_rule], output)


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
    from framegate.control.v1.tap_service_pb2 import UpdateTapRuleRequest

    if before and last:
        raise click.UsageError("give --before or --last, not both")
    rule, paths = _rule(name, values)
    paths += [_cleared(word) for word in clear]
    if len(set(paths)) != len(paths):
        raise click.UsageError("--clear names a key that another option sets, or names it twice")
    if not paths and not before and not last:
        raise click.UsageError("give at least one change")
    request = UpdateTapRuleRequest(tap_rule=rule)
    request.update_mask.paths.extend(paths)
    if before or last:
        request.before = before or ""
    _print([_change(address, lambda stub: stub.UpdateTapRule, request, change).tap_rule], output)


@taps.command(epilog=example("framegate taps remove debug"))
@click.argument("name", shell_complete=_complete_rule)
@change_options()
@admin_options
def remove(name: str, change: Change, address: str, output: str) -> None:
    """Remove a rule, in all processors or in none. Prints the remaining rules."""
    from framegate.control.cli.client import CALL_TIMEOUT_S, calling
    from framegate.control.v1.tap_service_pb2 import DeleteTapRuleRequest

    _change(address, lambda stub: stub.DeleteTapRule, DeleteTapRuleRequest(name=name), change)
    with calling(address, change=not change.dry_run) as channel:
        left = _listed(channel, CALL_TIMEOUT_S)
    _print(left, output)


def _change(address: str, method: "Callable[[pb2_grpc.TapServiceStub], Any]", request: Any, change: Change) -> Any:
    """Call a method of the tap service that changes something. Returns the response."""
    from framegate.control.cli.client import calling, send
    from framegate.control.v1.tap_service_pb2_grpc import TapServiceStub

    with calling(address, change=not change.dry_run) as channel:
        return send(method(TapServiceStub(channel)), request, change)


def _cleared(word: str) -> str:
    """The field of the message for a configuration key."""
    from framegate.control.v1.tap_service_pb2 import TapRule

    fixed = {"name", "etag", "state", "stops", "ttl"}
    names = [field.name for field in TapRule.DESCRIPTOR.fields if field.name not in fixed]
    known = {FIELD_NAMES.get(name, name).removesuffix("_ns"): name for name in names}
    path = known.get(word, word)
    if path not in known.values():
        words = sorted(known)
        raise click.BadParameter(f"{word!r} is not a key of a rule; the keys are {', '.join(words)}", param_hint="--clear")
    return path


def _rule(name: str, values: dict[str, Any]) -> "tuple[pb2.TapRule, list[str]]":
    """The message for the options given, and the names of its fields that are set."""
    from framegate.control.v1 import tap_service_pb2 as pb2

    rule = pb2.TapRule(name=name)
    enums: dict[str, Any] = {"directions": rule.Direction, "capture": rule.Capture, "on_full": rule.OnFull}
    prefixes = {"directions": "DIRECTION_", "capture": "CAPTURE_", "on_full": "ON_FULL_"}
    paths = []
    for field, value in values.items():
        if value is None or value == ():
            continue
        if field == "expires":
            paths.append(_expire(rule, value))
            continue
        paths.append(field)
        items = value if isinstance(value, (list, tuple)) else [value]
        if field in enums:
            items = [enums[field].Value(f"{prefixes[field]}{text.upper()}") for text in items]
        if isinstance(value, (list, tuple)):
            getattr(rule, field).extend(items)
        else:
            setattr(rule, field, items[0])
    return rule, paths


def _expire(rule: "pb2.TapRule", value: tuple[str, int]) -> str:
    kind, number = value
    if kind == "ttl":
        rule.ttl.FromMilliseconds(number)
        return "ttl"
    if number:
        rule.expire_time.FromNanoseconds(number)
    return "expire_time"


def _print(found: "list[pb2.TapRule]", output: str) -> None:
    if output == "json":
        print_json([as_dict(rule) for rule in found])
        return
    print_table(("NAME", "LISTENERS", "DIRECTIONS", "MATCHES", "CAPTURE", "SAMPLED", "WHEN FULL", "STATE"), map(_cells, found))


def _cells(rule: "pb2.TapRule") -> tuple[str, ...]:
    directions = ",".join(word(rule.Direction.Name(item), "DIRECTION_") for item in rule.directions)
    return (
        rule.name, ",".join(rule.listeners) or "all", directions, " ".join(_conditions(rule)) or "all", " ".join(_kept(rule)),
        " ".join(_sampled(rule)) or "all", word(rule.OnFull.Name(rule.on_full), "ON_FULL_"), "; ".join(_state(rule)),
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
    yield word(rule.Capture.Name(rule.capture), "CAPTURE_")
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
    yield word(rule.State.Name(rule.state), "STATE_")
    if rule.HasField("expire_time"):
        yield f"{'since' if rule.state == rule.STATE_EXPIRED else 'until'} {time_text(rule.expire_time.ToJsonString())}"
    for stop in rule.stops:
        cause = word(stop.Cause.Name(stop.cause), "CAUSE_")
        since = time_text(stop.stop_time.ToJsonString())
        yield f"off in processor {stop.processor_slot} since {since}: {cause} {stop.percent:g} % is above {stop.limit_percent:g} %"
