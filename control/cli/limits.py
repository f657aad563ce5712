"""``framegate limits``: show and change the frame size limit and the quotas."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from framegate.control.cli.client import EXIT_NOT_FOUND, Service, calling
from framegate.control.cli.kinds import LISTENER, MAX_INT64, SIZE
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import age_text, as_dict, counted, print_json, print_line, print_messages, print_note, print_table, size_text

if TYPE_CHECKING:
    import grpc

    from framegate.control.v1 import limit_service_pb2 as pb2

F = TypeVar("F", bound=Callable[..., object])

_SERVICE: Final = Service("limit")
_COUNT: Final = click.IntRange(0, MAX_INT64)
_QUOTAS: Final = {
    "connections": ("max_connection_count", _COUNT, "Open connections."),
    "connection_rate": ("connections_per_second", _COUNT, "Accepted connections per second."),
    "request_bytes_rate": ("request_bytes_per_second", SIZE, "Bytes of frames from clients per second, for example 10MiB."),
    "response_bytes_rate": ("response_bytes_per_second", SIZE, "Bytes of frames to clients per second, for example 10MiB."),
    "request_frames_rate": ("request_frames_per_second", _COUNT, "Frames from clients per second."),
    "response_frames_rate": ("response_frames_per_second", _COUNT, "Frames to clients per second."),
}  # by configuration key: the field of the API, the type of the option, its help
_API_NAMES: Final = {**{name: field for name, (field, _, _) in _QUOTAS.items()}, "max_receive_size": "max_receive_size_bytes"}


def _quota_options(function: F) -> F:
    for name, (_, kind, text) in reversed(_QUOTAS.items()):
        function = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=f"{text} 0 means unlimited.")(function)
    return function


@click.group(epilog=example("framegate limits set --listener kafka --max-receive-size 1MiB", "framegate limits set --node --connections 10000"))
def limits() -> None:
    """Limits for clients: the frame size, and quotas for connections, bytes and frames."""


@limits.command(epilog=example("framegate limits get", "framegate limits get --node"))
@click.option("--listener", type=LISTENER, help="Show only this listener.")
@click.option("--node", is_flag=True, help="Show the limits of the node, of client addresses and of networks.")
@admin_options
def get(listener: str | None, node: bool, address: str, output: str) -> None:
    """Show the limits in force for each listener, or for the node. 0 (in tables -) means unlimited."""
    if node and listener is not None:
        raise click.UsageError("give --listener or --node, not both")
    with calling(address) as channel:
        if node:
            _print_node(_SERVICE.ask(channel, "GetNodeLimits").node_limits, output)
        elif listener is not None:
            _print([_SERVICE.ask(channel, "GetLimit", listener=listener).limit], output)
        else:
            _print(_SERVICE.listed(channel, "ListLimits"), output)


@limits.command(
    "set",
    short_help="Change the frame size limit or quotas.",
    epilog=example(
        "framegate limits set --listener kafka --max-receive-size 1MiB --connections 5000",
        "framegate limits set --listener kafka --rules rules.yaml --dry-run",
        "framegate limits set --per-address --connections 100 --connection-rate 20",
        "framegate limits set --network 10.0.0.0/8 --connections 0",
        "framegate limits set --network 192.0.2.0/24 --access deny",
        "framegate limits set --network 192.0.2.0/24 --remove",
    ),
)
@click.option("--listener", type=LISTENER, help="Change limits of this listener.")
@click.option("--node", is_flag=True, help="Change limits of all listeners together.")
@click.option("--per-address", is_flag=True, help="Change limits of each client address.")
@click.option("--network", help="Change limits of each client address of this network (CIDR). Limits that are not set are those of --per-address.")
@click.option("--max-receive-size", type=SIZE, help="Largest frame body that clients of the listener may send, for example 1MiB.")
@click.option("--rules", type=click.File(errors="replace"), help="Replace the limit rules of the listener by those of a file; - is standard input.")
@_quota_options
@click.option("--access", type=click.Choice(["allow", "deny"]), help="Whether addresses of the network may connect.")
@click.option("--remove", is_flag=True, help="Remove the override of the network: its addresses have the limits of --per-address again.")
@change_options()
@admin_options
def set_(
    listener: str | None,
    node: bool,
    per_address: bool,
    network: str | None,
    max_receive_size: int | None,
    rules: IO[str] | None,
    access: str | None,
    remove: bool,
    change: Change,
    address: str,
    output: str,
    **given: int | None,
) -> None:
    """Change the limits that are given, in all processors or in none. Returns when the change is in force.

    A file of limit rules is YAML with the key `rules` of the section `limits` of a listener, as `limits get --listener` shows it; without rules
    there are none any more. Changes are lost at a restart, when the configuration file applies again.
    """
    quotas: dict[str, Any] = {_QUOTAS[name][0]: value for name, value in given.items() if value is not None}
    network = None if network is None else _canonical(network)
    if sum((listener is not None, node, per_address, network is not None)) != 1:
        raise click.UsageError("give one of --listener, --node, --per-address and --network")
    if (max_receive_size is not None or rules is not None) and listener is None:
        raise click.UsageError("--max-receive-size and --rules need --listener")
    if (access is not None or remove) and network is None:
        raise click.UsageError("--access and --remove need --network")
    if remove and (access is not None or quotas):
        raise click.UsageError("--remove cannot be used with --access or a quota")
    if not (quotas or max_receive_size is not None or rules is not None or access is not None or remove):
        raise click.UsageError("give at least one limit to change")
    with calling(address, change=not change.dry_run) as channel:
        if listener is not None:
            wanted: dict[str, Any] = {"listener": listener, "max_receive_size_bytes": max_receive_size, **quotas}
            fields: dict[str, Any] = {"limit": wanted}
            if rules is not None:
                fields["update_mask"] = {"paths": ["rules", *(name for name, value in wanted.items() if value is not None and name != "listener")]}
                wanted["rules"] = list(_read(rules))
            answer = _SERVICE.change(channel, "UpdateLimit", change, **fields)
            _print([answer.limit], output)
            if answer.HasField("size_forecast") and max_receive_size is not None and output == "table":
                print_note(_forecast_text(answer.size_forecast))
        else:
            _print_node(_set_node(channel, per_address, network, quotas, access, remove, change), output)


def _read(file: IO[str]) -> "Iterator[pb2.LimitRule]":
    """The limit rules in a file. Exits after the list of all faults."""
    from framegate.control.configuration.document import ConfigurationError
    from framegate.control.configuration.limit_rules import read_limit_rules

    try:
        rules = read_limit_rules(file.read())
    except ConfigurationError as error:
        for fault in error.faults:
            print_note(fault.in_file(file.name))
        sys.exit(2)
    for rule in rules:
        yield _SERVICE.messages.LimitRule(**{_API_NAMES.get(name, name): value for name, value in dataclasses.asdict(rule).items()})


def _forecast_text(found: "pb2.SizeForecast") -> str:
    least, most = found.least_refused_count, found.most_refused_count
    count = counted(most, "frame") if least == most else f"{least:,} to {counted(most, 'frame')}"
    return f"it would have refused {count} of the {found.frame_count:,} that clients sent in the last {age_text(found.window.seconds)}"


def _canonical(network: str) -> str:
    """A network in the form that overrides use."""
    import ipaddress

    from framegate.proxy.config.limits import parse_network

    try:
        return str(parse_network(str(ipaddress.ip_network(network))))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--network") from error


def _set_node(
    channel: "grpc.Channel", per_address: bool, network: str | None, quotas: dict[str, Any], access: str | None, remove: bool, change: Change
) -> "pb2.NodeLimits":
    fields: dict[str, Any] = {"node_limits": {"per_address": quotas} if per_address else quotas}
    if network is not None:
        now = _SERVICE.ask(channel, "GetNodeLimits").node_limits
        overrides = _overrides(list(now.overrides), network, quotas, access, remove)
        fields = {"node_limits": {"overrides": overrides, "etag": now.etag}, "update_mask": {"paths": ["overrides"]}}
    found: pb2.NodeLimits = _SERVICE.change(channel, "UpdateNodeLimits", change, **fields).node_limits
    return found


def _overrides(
    overrides: "list[pb2.LimitOverride]", network: str, quotas: dict[str, Any], access: str | None, remove: bool
) -> "list[pb2.LimitOverride]":
    pb2 = _SERVICE.messages
    found = next((item for item in overrides if item.network == network), None)
    if remove:
        if found is None:
            print_note(f"{network} has no override; overrides exist for: {', '.join(item.network for item in overrides) or 'none'}")
            sys.exit(EXIT_NOT_FOUND)
        return [item for item in overrides if item is not found]
    if found is None:
        found = pb2.LimitOverride(network=network)
        overrides.append(found)
    found.MergeFrom(pb2.LimitOverride(**quotas))
    if access is not None:
        found.access = pb2.NETWORK_ACCESS_DENY if access == "deny" else pb2.NETWORK_ACCESS_ALLOW
    return overrides


_COLUMNS: Final = ("CONNECTIONS", "CONNECTIONS/S", "REQUEST BYTES/S", "RESPONSE BYTES/S", "REQUEST FRAMES/S", "RESPONSE FRAMES/S")


def _cells(message: Any, unsaid: str = "-") -> list[str]:
    """The quotas of a message; ``unsaid``: the text for one that is not set."""
    cells = []
    for field, kind, _ in _QUOTAS.values():
        value = getattr(message, field)
        shown = size_text(value) if kind is SIZE else str(value)
        cells.append((shown if value else "-") if message.HasField(field) else unsaid)
    return cells


def _print(found: "list[pb2.Limit]", output: str) -> None:
    def cells(limit: "pb2.Limit") -> tuple[object, ...]:
        return limit.listener, size_text(limit.max_receive_size_bytes), limit.max_receive_size_bytes, *_cells(limit)

    print_messages(found, output, ("LISTENER", "MAX RECEIVE SIZE", "BYTES", *_COLUMNS), cells)
    if output == "json" or not any(limit.rules for limit in found):
        return
    if len(found) > 1:
        print_note("there are limit rules, which --listener shows: " + ", ".join(limit.listener for limit in found if limit.rules))
        return
    import yaml

    names = {field: name for name, field in _API_NAMES.items()}
    rules = [
        {names.get(field.name, field.name): list(value) if field.is_repeated else value for field, value in rule.ListFields()}
        for rule in found[0].rules
    ]
    for line in yaml.safe_dump({"rules": rules}, sort_keys=False).splitlines():
        print_line(line)


def _print_node(found: "pb2.NodeLimits", output: str) -> None:
    if output == "json":
        print_json(as_dict(found))
        return
    rows = [("node", "", *_cells(found)), ("each address", "", *_cells(found.per_address))]
    for item in found.overrides:
        denied = item.access == _SERVICE.messages.NETWORK_ACCESS_DENY
        rows.append((f"each of {item.network}", "deny" if denied else "allow", *_cells(item, "as others")))
    print_table(("OF", "ACCESS", *_COLUMNS), rows)
    if found.protected_listener:
        print_line(f"listener {found.protected_listener} is protected: the node's connection rate does not delay its connections")
