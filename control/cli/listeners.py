"""``framegate listeners``, ``framegate upstreams`` and ``framegate brokers``: the sides between which framegate forwards frames."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.kinds import LISTENER, UPSTREAM
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import as_dict, field_word, print_json, print_messages, print_note, print_table, size_text, time_text

if TYPE_CHECKING:
    from framegate.control.v1 import listener_service_pb2, upstream_service_pb2

_HEADINGS: Final = (
    "NAME", "ADDRESS", "PROTOCOL", "TLS", "UPSTREAM", "MAX RECEIVE SIZE", "REQUESTS", "ANSWERS", "OPEN", "AT MOST", "ACCEPTING", "HANDLER",
)  # fmt: skip
_REFUSED_HEADINGS: Final = ("TIME", "ID", "SIDE", "ADDRESS", "PRINCIPAL", "CLIENT ID", "SIZE", "LIMIT", "RULE", "REFUSED", "FIRST BYTES")
_UPSTREAM_HEADINGS: Final = ("NAME", "ADDRESS", "BROKER", "STATE", "SINCE", "WHY", "OPEN", "WEIGHT", "ZONE", "TLS")
_LISTENERS, _UPSTREAMS = Service("listener"), Service("upstream")


@click.group(epilog=example("framegate listeners list"))
def listeners() -> None:
    """Listeners: the addresses on which clients connect."""


@listeners.command("list", epilog=example("framegate listeners list --output json"))
@admin_options
def list_listeners(address: str, output: str) -> None:
    """List the listeners.

    REQUESTS and ANSWERS say how frames are forwarded, OPEN counts open connections, AT MOST is their limit.
    """

    def cells(item: "listener_service_pb2.Listener") -> tuple[object, ...]:
        return (
            item.name, item.address, field_word(item, "protocol"), "yes" if item.tls_enabled else "no", item.upstream or "-",
            size_text(item.max_receive_size_bytes), field_word(item, "request_forwarding"), field_word(item, "response_forwarding"),
            item.open_connection_count, item.max_connection_count or "-", "yes" if item.accepting else "no", item.handler or "-",
        )  # fmt: skip

    with calling(address) as channel:
        found = _LISTENERS.listed(channel, "ListListeners")
    print_messages(found, output, _HEADINGS, cells)


@listeners.command(epilog=example("framegate listeners refused clients"))
@click.argument("name", type=LISTENER)
@admin_options
def refused(name: str, address: str, output: str) -> None:
    """List the frames whose size was refused last, up to 100, the latest first: when, from whom, how large they say they are, and how they begin.

    RULE is the limit rule whose limit it is. With `report_only` of the rule the frame was not refused but forwarded; of such frames each processor
    lists at most ten per second and rule.

    FIRST BYTES are at most 16, in hexadecimal, with the header. They are not kept of frames of an authentication (listeners[].sasl), and nothing is
    kept of connections of another protocol, such as TLS or HTTP.
    """

    def cells(item: "listener_service_pb2.RefusedFrame") -> tuple[object, ...]:
        return (
            time_text(item.time.ToJsonString()), item.channel_id, field_word(item, "side"), item.peer_address, item.principal or "-",
            item.client_id or "-", item.size_bytes, item.limit_bytes, item.limit_rule or "-", "no" if item.report_only else "yes",
            item.head.hex(" ", 4) or "-",
        )  # fmt: skip

    with calling(address) as channel:
        found = _LISTENERS.listed(channel, "ListRefusedFrames", listener=name)
    print_messages(found, output, _REFUSED_HEADINGS, cells, "no frames were refused")


@click.group(epilog=example("framegate upstreams list"))
def upstreams() -> None:
    """Upstreams: the servers to which framegate forwards frames."""


@upstreams.command("list", epilog=example("framegate upstreams list --output json"))
@admin_options
def list_upstreams(address: str, output: str) -> None:
    """List the upstreams, their addresses, and whether connections use them.

    STATE is up, full, failing (its checks), down (a connection failed) or ejected. WHY says what failed last, and whether a new connection may try it
    again, OPEN counts the connections of all processors.
    """

    def rows(item: "upstream_service_pb2.Upstream") -> Iterator[tuple[object, ...]]:
        tls = "yes" if item.tls_enabled else "no"
        for each in item.endpoint_states:
            reason = field_word(each, "reason") if each.reason else ""
            why = f"{reason}: {each.detail}" if each.detail else reason
            out = f"out in {each.out_processor_count} processors" if each.out_processor_count > 1 else ""
            yield (
                item.name, each.address, each.node_id if each.HasField("node_id") else "-", field_word(each, "state"),
                time_text(each.since_time.ToJsonString() if each.HasField("since_time") else None), "; ".join(filter(None, (why, out))) or "-",
                each.connection_count, each.weight, each.zone or "-", tls,
            )  # fmt: skip
        if item.resolution_error or not item.endpoint_states:
            yield item.name, ", ".join(item.endpoints), "-", "unresolved", "-", item.resolution_error or "no address", "-", "-", "-", tls

    with calling(address) as channel:
        found = _UPSTREAMS.listed(channel, "ListUpstreams")
    if output == "json":
        print_json([as_dict(item) for item in found])
    else:
        print_table(_UPSTREAM_HEADINGS, [row for item in found for row in rows(item)])
    if not found and output == "table":
        print_note("no upstreams")


@click.group(epilog=example("framegate brokers list"))
def brokers() -> None:
    """Brokers of Kafka clusters that framegate is in front of."""


@brokers.command("list", epilog=example("framegate brokers list --upstream brokers"))
@click.option("--upstream", type=UPSTREAM, default=None, help="Only the brokers of this upstream.")
@admin_options
def list_brokers(address: str, output: str, upstream: str | None) -> None:
    """List the brokers, each once for each listener in front of its cluster.

    ADDRESS is the broker's own, ADVERTISED the one that clients are told (-: that of the bootstrap), OPEN counts connections to it.
    """

    def cells(item: "upstream_service_pb2.Broker") -> tuple[object, ...]:
        state = field_word(item, "state")
        return (
            item.upstream, item.listener, item.node_id, item.address, item.advertised_address or "-", item.rack or "-",
            f"{state}: {item.reason}" if item.reason else state, item.open_connection_count,
        )  # fmt: skip

    with calling(address) as channel:
        found = _UPSTREAMS.listed(channel, "ListBrokers", upstream=upstream or "")
    none = "no brokers: no upstream is a cluster, or none is known yet (the row brokers_unreadable says why)"
    print_messages(found, output, ("UPSTREAM", "LISTENER", "NODE", "ADDRESS", "ADVERTISED", "RACK", "STATE", "OPEN"), cells, none)
