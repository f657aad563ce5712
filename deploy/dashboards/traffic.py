"""Who, what, how much: connections, frames, bytes, sizes, and how long things take by Kafka's API."""

from typing import Final

from dashboards.panels import Dashboard, Panel, Query, Row
from dashboards.promql import either, per_second, quantile, seen, total

__all__ = ["TRAFFIC"]

LISTENER: Final = "framegate_listener"
API: Final = "framegate_kafka_api"
UPSTREAM: Final = "framegate_upstream"
KAFKA: Final = "framegate_kafka_request_duration_seconds"

_WHO: Final = (
    Panel(
        title="Who is connected?",
        good="As many clients of each listener as there are at this time of day.",
        otherwise="`framegate channels list --limit 50` names them with their principals; one address that takes too many: "
        "`framegate limits set --per-address --connections 100`.",
        queries=(Query(total('framegate_connection_active{@l, framegate_side="downstream"}', LISTENER), "{{framegate_listener}}"),),
        unit="short",
        stacked=True,
    ),
    Panel(
        title="How fast do they come?",
        good="A few connections a second. Many for as many that end are clients that do not keep theirs.",
        otherwise="`framegate channels list --closed` says why they end; `framegate limits set --node --connection-rate 100` bounds it.",
        queries=(Query(per_second("framegate_connection_accepted_total{@l}", LISTENER), "{{framegate_listener}}"),),
        unit="cps",
        stacked=True,
        next="hurts",
    ),
    Panel(
        title="How much passes, in frames?",
        good="About as many requests as answers, and what was received was sent.",
        otherwise="Received and not sent: something waits; `framegate channels list` shows what is muted, and for what.",
        queries=(
            Query(
                per_second("framegate_frame_count_total{@l}", "framegate_side, network_io_direction"), "{{framegate_side}} {{network_io_direction}}"
            ),
        ),
        unit="cps",
        next="hurts",
    ),
    Panel(
        title="How much passes, in bytes?",
        good="Below what the network takes, and below the listeners' rates.",
        otherwise="`framegate limits get` shows the rates; `framegate limits set --listener kafka --request-bytes-rate 50MiB` sets one.",
        queries=(
            Query(per_second("framegate_io_bytes_total{@l}", "framegate_side, network_io_direction"), "{{framegate_side}} {{network_io_direction}}"),
        ),
        unit="binBps",
    ),
    Panel(
        title="Whose listener is it?",
        good="As you would expect.",
        otherwise="`framegate listeners list` shows each with its connections and what it may take.",
        queries=(
            Query(
                per_second('framegate_io_bytes_total{@l, framegate_side="downstream"}', f"{LISTENER}, network_io_direction"),
                "{{framegate_listener}} {{network_io_direction}}",
            ),
        ),
        unit="binBps",
        stacked=True,
    ),
    Panel(
        title="How large are the frames?",
        good="Far below the limit, which is the largest line.",
        otherwise="`framegate tap cat /var/lib/framegate/tap --min-size 1MiB` shows who sends large ones; `framegate limits set --listener kafka "
        "--max-receive-size 2MiB` "
        "moves the limit.",
        queries=(
            Query(quantile(0.5, "framegate_frame_size_bytes", '{@l, framegate_side="downstream"}'), "half of the requests"),
            Query(quantile(0.99, "framegate_frame_size_bytes", '{@l, framegate_side="downstream"}'), "99 % of the requests"),
            Query(quantile(0.99, "framegate_frame_size_bytes", '{@l, framegate_side="upstream"}'), "99 % of the answers"),
            Query("max(framegate_frame_size_limit_bytes{@l})", "the largest limit"),
        ),
        unit="bytes",
        logarithmic=True,
        next="hurts",
    ),
    Panel(
        title="How long does a frame take through framegate?",
        good="99 of 100 within a few milliseconds. It is measured from when a frame was read to when the other side's socket took its last byte, "
        "so a peer "
        "that is slow is in it.",
        otherwise="`framegate channels list` shows who is muted for `peer` or `memory`; then look at who hurts.",
        queries=(
            Query(quantile(0.5, "framegate_frame_forward_duration_seconds", "{@l}", "framegate_direction"), "half, {{framegate_direction}}"),
            Query(quantile(0.99, "framegate_frame_forward_duration_seconds", "{@l}", "framegate_direction"), "99 %, {{framegate_direction}}"),
        ),
        unit="s",
        steps=((None, "green"), (0.01, "orange")),
        next="hurts",
    ),
    Panel(
        title="How many requests wait for their answer?",
        good="A few for each connection; Fetch waits on purpose, up to the client's `fetch.max.wait.ms`.",
        otherwise="Growing: the brokers are slow, or an answer cannot be sent; `framegate upstreams list` shows what is left out.",
        queries=(Query(total("framegate_kafka_request_open{@l}", LISTENER), "{{framegate_listener}}"),),
        unit="short",
        next="hurts",
    ),
    Panel(
        title="How long does a connection to an upstream take?",
        good="99 of 100 within some milliseconds, TLS included.",
        otherwise="`framegate upstreams list` shows addresses that are left out; `framegate doctor` tries each of them.",
        queries=(Query(quantile(0.99, "framegate_upstream_connect_duration_seconds", "{@}", UPSTREAM), "{{framegate_upstream}}"),),
        unit="s",
        next="identity",
    ),
)
_KAFKA: Final = Row(
    title="Which of Kafka's APIs?",
    panels=(
        Panel(
            title="Which APIs are called?",
            good="Produce and Fetch, above all.",
            otherwise="Much Metadata or ApiVersions: clients that connect anew all the time; `framegate channels list --closed` says why.",
            queries=(Query(seen(per_second(f"{KAFKA}_count{{@l}}", API), API), "{{framegate_kafka_api}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            title="How long does each API take?",
            good="Produce: milliseconds. Fetch, JoinGroup and SyncGroup wait on purpose.",
            otherwise="One API is slow everywhere: the brokers. Whether framegate adds to it is said by how long a frame takes through it; "
            "`framegate tap cat /var/lib/framegate/tap --api Produce --limit 20` shows single ones.",
            queries=(Query(quantile(0.99, KAFKA, "{@l}", API), "99 %, {{framegate_kafka_api}}"),),
            unit="s",
            next="hurts",
        ),
        Panel(
            title="How many bytes does each API move?",
            good="Produce's requests and Fetch's answers, above all.",
            otherwise="`framegate tap cat /var/lib/framegate/tap --api Fetch --min-size 1MiB` shows the large ones.",
            queries=(
                Query(
                    seen(per_second("framegate_kafka_request_io_bytes_total{@l}", f"{API}, framegate_direction"), API),
                    "{{framegate_kafka_api}} {{framegate_direction}}",
                ),
            ),
            unit="binBps",
            stacked=True,
        ),
    ),
)
_MORE: Final = Row(
    title="What is allowed, and how well does it flow?",
    panels=(
        Panel(
            title="What may a listener take?",
            good="0 is unlimited; otherwise more than what passes.",
            otherwise="`framegate limits get` shows all of them, `framegate limits set --listener kafka --request-bytes-rate 50MiB` changes one.",
            queries=(
                Query(
                    f"max by (framegate_listener, framegate_direction) ({either('framegate_rate_io_limit', 'bytes_per_second', '{@l}')})",
                    "{{framegate_listener}} {{framegate_direction}}",
                ),
            ),
            unit="binBps",
            width=6,
        ),
        Panel(
            title="How many frames come with one read?",
            good="The more, the cheaper: 1 where clients wait for each answer.",
            otherwise="Nothing needs to be done.",
            queries=(
                Query(
                    per_second('framegate_frame_count_total{@l, network_io_direction="receive"}', "framegate_side")
                    + " / "
                    + per_second("framegate_read_count_total{@l}", "framegate_side")
                    + " >= 0",
                    "{{framegate_side}}",
                ),
            ),
            unit="short",
            width=6,
            decimals=1,
        ),
        Panel(
            title="How many connections are there to upstreams?",
            good="One for each client. `connecting` is short.",
            otherwise="`framegate upstreams list` shows what is left out.",
            queries=(
                Query(total("framegate_upstream_connection_count{@}", f"{UPSTREAM}, framegate_state"), "{{framegate_upstream}} {{framegate_state}}"),
            ),
            unit="short",
            width=6,
        ),
        Panel(
            title="How long do connections last?",
            good="Hours, where clients keep them.",
            otherwise="Seconds: look at who ends them, and why: `framegate channels list --closed`.",
            queries=(Query(quantile(0.5, "framegate_connection_duration_seconds", '{@, framegate_side="downstream"}'), "half of those that ended"),),
            unit="s",
            width=6,
            next="hurts",
        ),
    ),
)

TRAFFIC: Final = Dashboard(
    slug="traffic",
    title="Traffic: who, what, how much?",
    description="Connections, frames and bytes; how large frames are, and how long they and Kafka's requests take.",
    panels=_WHO,
    rows=(_KAFKA, _MORE),
)
