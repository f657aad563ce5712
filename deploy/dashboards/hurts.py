"""Who hurts, and why? What makes whom wait, what is refused, and where memory is."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.promql import per_second, quantile, seen, total
from dashboards.trouble import BUSY, LOOP

__all__ = ["HURTS"]

LISTENER: Final = "framegate_listener"
CAUSE: Final = "framegate_mute_cause"
REASON: Final = "framegate_reason"
BROKER: Final = "framegate_upstream, framegate_kafka_broker"
ACTION: Final = "framegate_handler_action"
PROCESSORS: Final = 'count(framegate_event_loop_time_seconds_total{@, framegate_state="busy", framegate_worker!="retired"})'
MUTES: Final = per_second("framegate_channel_mute_count_total{@}", CAUSE)

_WAITS: Final = (
    Panel(
        title="What makes channels wait?",
        good="Little of `memory`; `peer`, `throttle` and `handler` as your configuration makes you expect. The height is the average number "
        "of channels that were muted for this cause.",
        otherwise="`framegate channels list` shows the muted channels; `framegate channels describe 0-27700000-12` since when. `admin`: an "
        "operator muted the channel; resume it with `framegate channels unmute 0-27700000-12`.",
        queries=(Query(seen(f"sum by ({CAUSE}) (avg_over_time(framegate_channel_muted{{@}}[@]))", CAUSE), "{{framegate_mute_cause}}"),),
        unit="short",
        stacked=True,
    ),
    Panel(
        title="Who does not take what is sent?",
        good="A few, for moments. These are channels whose peer has not read all that was sent to it: slow clients (downstream), slow brokers "
        "(upstream).",
        otherwise="`framegate pool get --top 10` shows the bytes that wait for each of them; `framegate channels close 0-27700000-12 "
        "--reason slow` ends one connection.",
        queries=(Query(total("framegate_channel_pending{@}", "framegate_side"), "{{framegate_side}}"),),
        unit="short",
    ),
    Panel(
        title="How full is the memory, and of what?",
        good="Below the limit, with room for the largest frame. `begun`: frames that are not whole yet. `pending`: bytes that a peer has not "
        "read yet.",
        otherwise="`framegate pool get --top 10` shows the connections that hold most; `framegate pool set --size 512MiB` makes it larger.",
        queries=(
            Query(total("framegate_memory_pool_usage_bytes{@}", "framegate_memory_kind"), "{{framegate_memory_kind}}"),
            Query(total("framegate_memory_pool_limit_bytes{@}"), "limit"),
        ),
        unit="bytes",
    ),
    Panel(
        title="Whose connections hold the memory?",
        good="In proportion to their traffic: all listeners share the pool, except for the parts that `memory_pool.shares` guarantees.",
        otherwise="`framegate pool get --top 10` names the connections.",
        queries=(Query(total("framegate_memory_pool_listener_usage_bytes{@l}", LISTENER), "{{framegate_listener}}"),),
        unit="bytes",
        stacked=True,
    ),
    Panel(
        title="How long do large frames wait for their turn?",
        good="99 of 100 within a tenth of a second. Frames up to 256 KiB never wait.",
        otherwise="`framegate pool get` shows how many wait. A connection that holds memory and does not move for 10 s while others wait is closed.",
        queries=(
            Query(quantile(0.5, "framegate_memory_pool_wait_duration_seconds"), "half"),
            Query(quantile(0.99, "framegate_memory_pool_wait_duration_seconds"), "99 %"),
        ),
        nothing="no frames wait",
        unit="s",
    ),
    Panel(
        title="Which frames are refused?",
        good="None. `frame_too_large`: above the listener's `max_receive_size`; `negative_size`: the client uses another framing; `incomplete`: the "
        "connection ended in the middle of the frame.",
        otherwise="`framegate channels list --closed --filter cause=frame_too_large` names the clients that sent them; `framegate limits set "
        "--listener kafka --max-receive-size 2MiB` lets them pass.",
        queries=(
            Query(
                seen(per_second("framegate_frame_rejected_total{@l}", f"{LISTENER}, {REASON}"), REASON), "{{framegate_listener}} {{framegate_reason}}"
            ),
        ),
        unit="cps",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="Why do connections end?",
        good="`peer_closed` and `no_data`, above all.",
        otherwise="`framegate channels list --closed --limit 50` shows the last ones, with their clients and details in words.",
        queries=(Query(seen(per_second("framegate_connection_closed_total{@l}", "framegate_cause"), "framegate_cause"), "{{framegate_cause}}"),),
        unit="cps",
        stacked=True,
        next="identity",
    ),
    Panel(
        title="Which connections are refused at accept?",
        good="None.",
        otherwise="`framegate limits get --node` shows what is allowed; `framegate limits set --per-address --connections 200` changes it.",
        queries=(
            Query(
                seen(per_second("framegate_connection_rejected_total{@l}", f"{LISTENER}, {REASON}"), REASON),
                "{{framegate_listener}} {{framegate_reason}}",
            ),
        ),
        unit="cps",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="Which errors does accept meet?",
        good="None. `EMFILE`: the limit of descriptors is too low.",
        otherwise="`framegate doctor` compares limits of the process with the configuration.",
        queries=(Query(seen(per_second("framegate_accept_errors_total{@l}", "error_type"), "error_type"), "{{error_type}}"),),
        unit="cps",
        steps=NONE_IS_GOOD,
    ),
)
_UPSTREAM: Final = Row(
    title="Which upstream hurts?",
    panels=(
        Panel(
            title="Which addresses are left out?",
            good="None. One that fails is left out for 1 s, doubling to 30 s.",
            otherwise="`framegate upstreams list` names them with the reason; `framegate doctor` tries each.",
            queries=(Query(total("framegate_upstream_endpoint_down{@}", "framegate_upstream"), "{{framegate_upstream}}"),),
            unit="short",
            width=12,
            steps=NONE_IS_GOOD,
        ),
        Panel(
            title="Why do connections to upstreams fail?",
            good="They do not.",
            otherwise="`framegate upstreams list`; `framegate channels list --closed --filter cause=upstream_refused` shows the connections that "
            "ended for it.",
            queries=(
                Query(
                    seen(
                        per_second('framegate_upstream_connect_duration_seconds_count{@, error_type!=""}', "framegate_upstream, error_type"),
                        "error_type",
                    ),
                    "{{framegate_upstream}} {{error_type}}",
                ),
            ),
            unit="cps",
            width=12,
            steps=NONE_IS_GOOD,
        ),
    ),
)
_BROKERS: Final = Row(
    title="Which broker hurts?",
    panels=(
        Panel(
            title="In which state are the brokers of clusters?",
            good="All `up`, on each framegate as many.",
            otherwise="`framegate brokers list` says why: `down`, its address cannot be reached; `no_port`, `brokers.ports` has no port for it; "
            "`gone`, it left the cluster and connections are open.",
            queries=(
                Query(
                    f"{total('framegate_broker_count{@}', 'framegate_upstream, framegate_state')} > 0", "{{framegate_upstream}} {{framegate_state}}"
                ),
            ),
            unit="short",
            width=12,
            stacked=True,
        ),
        Panel(
            title="Which brokers cannot be reached?",
            good="None.",
            otherwise="`framegate brokers list`, `framegate doctor`.",
            queries=(
                Query(
                    seen(
                        total(
                            'framegate_broker_count{@, framegate_state=~"down|no_port"}',
                            "framegate_upstream, framegate_kafka_broker, framegate_state",
                        ),
                        "framegate_kafka_broker",
                    ),
                    "{{framegate_upstream}} {{framegate_kafka_broker}} {{framegate_state}}",
                ),
            ),
            unit="short",
            width=12,
            steps=NONE_IS_GOOD,
        ),
    ),
)
_HANDLERS: Final = Row(
    title="Are handlers slow?",
    panels=(
        Panel(
            title="Where does a handled frame spend its time?",
            good="In the handler; milliseconds.",
            otherwise="In the queue: more `handlers.processes`; sent slowly: the client. `framegate handlers list` shows how busy each is.",
            queries=(
                Query(quantile(0.99, "framegate_handler_queue_time_seconds", "{@l}"), "99 %, waits"),
                Query(quantile(0.99, "framegate_handler_time_seconds", "{@l}"), "99 %, in the handler"),
                Query(quantile(0.99, "framegate_handler_response_queue_time_seconds", "{@l}"), "99 %, answer waits"),
                Query(quantile(0.99, "framegate_handler_response_send_time_seconds", "{@l}"), "99 %, answer is sent"),
            ),
            unit="s",
            width=12,
        ),
        Panel(
            title="What do handlers do?",
            good="What they are for; `failed` never.",
            otherwise="The row `handler_raised` has the traceback; `framegate handlers list` counts what failed.",
            queries=(Query(seen(per_second("framegate_handler_requests_total{@l}", ACTION), ACTION), "{{framegate_handler_action}}"),),
            unit="cps",
            width=12,
            stacked=True,
        ),
    ),
)
_LOOPS: Final = Row(
    title="Have the processors time?",
    panels=(
        Panel(
            title="How busy is each processor?",
            good="Below 70 %.",
            otherwise="`framegate pool set --processors 3` starts another; one that is busier than others has the busiest connections.",
            queries=(Query(f"{BUSY} / {LOOP}", "{{framegate_worker}} {{instance}} {{pod}}"),),
            unit="percentunit",
            width=12,
            steps=((None, "green"), (0.7, "orange"), (0.9, "red")),
            maximum=1.0,
        ),
        Panel(
            title="How long does a processor not look up?",
            good="99 of 100 times within a few milliseconds.",
            otherwise="The container may be throttled: `framegate doctor` says so; or a processor has too much: `framegate pool set --processors 3`.",
            queries=(Query(quantile(0.99, "framegate_event_loop_lag_seconds", "{@}", "framegate_worker"), "99 %, {{framegate_worker}}"),),
            unit="s",
            width=12,
        ),
    ),
)

HURTS: Final = Dashboard(
    slug="hurts",
    title="Who hurts, and why?",
    description="Why channels wait, which connections hold memory, and why frames and connections are refused or ended.",
    panels=_WAITS,
    rows=(_UPSTREAM, _BROKERS, _HANDLERS, _LOOPS),
)
