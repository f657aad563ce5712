"""Who, what, how much: connections, frames, bytes, sizes, and how long things take by Kafka's API."""

from typing import Final

from dashboards.panels import Dashboard, Panel, Query
from dashboards.promql import per_second, quantile, total

__all__ = ["TRAFFIC"]

LISTENER: Final = "framegate_listener"
API: Final = "framegate_kafka_api"
KAFKA: Final = "framegate_kafka_request_duration_seconds"
CLIENT: Final = "framegate_listener, framegate_principal, framegate_client_id, client_address"
TOP: Final = {
    "bytes a second": "io_bytes_per_second",
    "frames a second": "frame_rate_per_second",
    "bytes held": "memory_usage_bytes",
    "refused a second": "refusals_per_second",
    "failed logins a second": "login_failures_per_second",
}

_WHO: Final = (
    Panel(
        title="Who is connected?",
        good="As many clients of each listener as there are at this time of day.",
        otherwise="`framegate channels list --limit 50` names them with their principals. Against too many connections of one address: "
        "`framegate limits set --per-address --connections 100`.",
        queries=(Query(total('framegate_connection_active{@l, framegate_side="downstream"}', LISTENER), "{{framegate_listener}}"),),
        unit="short",
        height=7,
        stacked=True,
    ),
    Panel(
        title="How much passes, in bytes?",
        good="Below the capacity of the network, and below the listeners' rates.",
        otherwise="`framegate limits get` shows the rates; `framegate limits set --listener kafka --request-bytes-rate 50MiB` sets one.",
        queries=(
            Query(per_second("framegate_io_bytes_total{@l}", "framegate_side, network_io_direction"), "{{framegate_side}} {{network_io_direction}}"),
        ),
        unit="binBps",
        height=7,
    ),
    Panel(
        title="How large are the frames?",
        good="Far below the limit, which is the largest line.",
        otherwise="`framegate tap cat /var/lib/framegate/tap --min-size 1MiB` shows the clients that send large ones; `framegate limits set "
        "--listener kafka --max-receive-size 2MiB` changes the limit.",
        queries=(
            Query(quantile(0.5, "framegate_frame_size_bytes", '{@l, framegate_side="downstream"}'), "half of the requests"),
            Query(quantile(0.99, "framegate_frame_size_bytes", '{@l, framegate_side="downstream"}'), "99 % of the requests"),
            Query(quantile(0.99, "framegate_frame_size_bytes", '{@l, framegate_side="upstream"}'), "99 % of the answers"),
            Query("max(framegate_frame_size_limit_bytes{@l})", "the largest limit"),
        ),
        unit="bytes",
        height=7,
        logarithmic=True,
        next="hurts",
    ),
    Panel(
        title="How long does a frame take through framegate?",
        good="99 of 100 within a few milliseconds. It is measured from the arrival of a frame to the write of its last byte on the other "
        "side, so it includes the wait for the processor and for a slow peer.",
        otherwise="`framegate channels list` shows the channels that are muted for `peer` or `memory`; then see the dashboard *Who hurts, and why?*.",
        queries=(
            Query(quantile(0.5, "framegate_frame_forward_duration_seconds", "{@l}", "framegate_direction"), "half, {{framegate_direction}}"),
            Query(quantile(0.99, "framegate_frame_forward_duration_seconds", "{@l}", "framegate_direction"), "99 %, {{framegate_direction}}"),
        ),
        unit="s",
        width=12,
        height=7,
        steps=((None, "green"), (0.01, "orange")),
        next="hurts",
    ),
    Panel(
        title="How long does each API take?",
        good="Produce: milliseconds. Fetch, JoinGroup and SyncGroup wait on purpose.",
        otherwise="If one API is slow everywhere, the brokers are slow. The panel *How long does a frame take through framegate?* shows what "
        "framegate adds; `framegate tap cat /var/lib/framegate/tap --api Produce --limit 20` shows single requests.",
        queries=(Query(quantile(0.99, KAFKA, "{@l}", API), "99 %, {{framegate_kafka_api}}"),),
        unit="s",
        width=12,
        height=7,
        next="hurts",
    ),
    Panel(
        title="Which clients use most?",
        good="None far above the others. The ten with most of the last minute; `<many>`: failed logins with many names, or from many addresses.",
        otherwise="`framegate top` shows the same (key c). Against one: `framegate channels list --filter principal=NAME`, then a limit rule.",
        queries=(
            Query(
                "\nor\n".join(
                    f'label_replace(sum by ({CLIENT}) (framegate_client_{name}{{@l}}), "measure", "{words}", "", "")' for words, name in TOP.items()
                )
            ),
        ),
        unit="short",
        kind="table",
        width=24,
        height=7,
        nothing="no client",
        columns=(
            ("measure", "of", 160),
            ("Value", "how much", 110),
            ("framegate_listener", "listener", 140),
            ("framegate_principal", "principal", 220),
            ("framegate_client_id", "client id", 220),
            ("client_address", "address", 180),
        ),
    ),
)

TRAFFIC: Final = Dashboard(
    slug="traffic",
    title="Traffic: who, what, how much?",
    description="Connections, frames and bytes; how large frames are, and how long they and Kafka's requests take.",
    panels=_WHO,
)
