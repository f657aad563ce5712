"""Who hurts, and why? What makes whom wait, what is refused, and which upstream fails."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.promql import per_second, quantile, seen, total

__all__ = ["HURTS"]

LISTENER: Final = "framegate_listener"
CAUSE: Final = "framegate_mute_cause"
REASON: Final = "framegate_reason"
ACTION: Final = "framegate_handler_action"
WORKER: Final = "framegate_worker"
ENDPOINT: Final = "framegate_upstream, server_address, server_port, framegate_kafka_broker"
OF_ENDPOINT: Final = "{{framegate_upstream}} {{server_address}} {{server_port}} {{framegate_kafka_broker}}"

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
        title="How much of the pool is used, and who waits for it?",
        good="Below 1, and nobody waits. Large frames wait when they need more than is free: before all of it is used.",
        otherwise="`framegate pool get --top 10` shows the connections that hold most; `framegate pool set --size 512MiB` makes it larger.",
        queries=(
            Query(
                f"{total('framegate_memory_pool_usage_bytes{@}', 'framegate_memory_kind')} "
                f"/ on () group_left () {total('framegate_memory_pool_limit_bytes{@}')}",
                "used: {{framegate_memory_kind}}",
            ),
            Query("max by (instance, pod) (rate(framegate_memory_pool_depleted_time_seconds_total{@}[@]))", "share of the time: clients wait"),
        ),
        unit="percentunit",
        steps=((None, "green"), (0.8, "orange")),
    ),
    Panel(
        title="Why do connections end?",
        good="`peer_closed` and `no_data`, above all.",
        otherwise="`framegate channels list --closed --limit 50` shows the last ones, with their clients and details in words.",
        queries=(Query(seen(per_second("framegate_connection_closed_total{@l}", "framegate_cause"), "framegate_cause"), "{{framegate_cause}}"),),
        unit="suffix: connections/s",
        stacked=True,
        next="identity",
    ),
    Panel(
        title="What is refused, and why?",
        good="Nothing. `frame_too_large`: above the listener's `max_receive_size`; `negative_size`: the client uses another framing. `EMFILE`: the "
        "limit of descriptors is too low.",
        otherwise="`framegate channels list --closed --filter cause=frame_too_large` names clients; `framegate limits get --node` shows "
        "what is allowed.",
        queries=tuple(
            Query(seen(per_second(f"framegate_{name}_total{{@l}}", f"{LISTENER}, {label}"), label), f"{what} {{{{{LISTENER}}}}} {{{{{label}}}}}")
            for name, label, what in (
                ("connection_rejected", REASON, "connections"),
                ("frame_rejected", REASON, "frames"),
                ("accept_errors", "error_type", "accept"),
            )
        ),
        unit="suffix: refused/s",
        steps=NONE_IS_GOOD,
        next="identity",
    ),
    Panel(
        title="How old is the oldest request that waits?",
        good="Below a second; Fetch waits on purpose, up to the client's `fetch.max.wait.ms`.",
        otherwise="`framegate upstreams list` shows the endpoint's state. If it accepts connections and answers nothing, restart that server.",
        queries=(Query(f"max by ({ENDPOINT}) (framegate_upstream_request_age_seconds{{@u}}) > 0 or on () vector(0)", OF_ENDPOINT),),
        unit="s",
        steps=((None, "green"), (20, "red")),
    ),
    Panel(
        title="How many connections to endpoints fail, and why?",
        good="None. `resolution`: the name has no address; `abandoned`: the client went away.",
        otherwise="`framegate upstreams list`; `framegate channels list --closed --filter cause=upstream_refused` shows the clients.",
        queries=(
            Query(
                seen(per_second('framegate_upstream_connect_duration_seconds_count{@u, error_type!=""}', f"{ENDPOINT}, error_type"), "error_type"),
                OF_ENDPOINT + " {{error_type}}",
            ),
        ),
        unit="suffix: connections/s",
        steps=NONE_IS_GOOD,
    ),
)
_UPSTREAM: Final = Row(
    title="What else of upstreams?",
    panels=(
        Panel(
            title="Which endpoints are left out?",
            good="None. One that fails is left out for 1 s, doubling to 30 s.",
            otherwise="`framegate upstreams list` names the addresses with the reason; `framegate doctor` tries each.",
            queries=(Query(seen(total("framegate_upstream_endpoint_down{@u}", ENDPOINT), "framegate_upstream"), OF_ENDPOINT),),
            unit="short",
            steps=NONE_IS_GOOD,
        ),
        Panel(
            title="How long does an endpoint take to begin its answer?",
            good="99 of 100 within a few milliseconds; of protocols that wait on purpose longer.",
            otherwise="Slower than others: examine that server. `framegate upstreams list` shows latencies.",
            queries=(Query(quantile(0.99, "framegate_upstream_first_byte_duration_seconds", "{@u}", ENDPOINT), f"99 %, {OF_ENDPOINT}"),),
            unit="s",
        ),
        Panel(
            title="Which errors do answers have?",
            good="`rebalance_in_progress` and `not_leader_or_follower` for moments.",
            otherwise="`framegate tap cat /var/lib/framegate/tap --limit 20` shows single answers; a cluster's own log has the reasons.",
            queries=(
                Query(
                    seen(per_second("framegate_kafka_response_errors_total{@u}", f"{ENDPOINT}, error_type"), "error_type"),
                    OF_ENDPOINT + " {{error_type}}",
                ),
            ),
            unit="suffix: answers/s",
        ),
        Panel(
            title="In which state are the brokers of clusters?",
            good="All `up`, on each framegate as many.",
            otherwise="`framegate brokers list` says why: `down`, its address cannot be reached; `no_port`, `brokers.ports` has no port for it; "
            "`gone`, it left the cluster and connections are open.",
            queries=(
                Query(
                    f"{total('framegate_broker_count{@u}', 'framegate_upstream, framegate_state')} > 0", "{{framegate_upstream}} {{framegate_state}}"
                ),
            ),
            unit="short",
            stacked=True,
            nothing="no clusters",
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
            unit="suffix: frames/s",
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
            queries=(
                Query(
                    per_second('framegate_event_loop_time_seconds_total{@, framegate_state="busy"}', f"instance, pod, {WORKER}")
                    + " / "
                    + per_second("framegate_event_loop_time_seconds_total{@}", f"instance, pod, {WORKER}"),
                    "{{framegate_worker}} {{instance}} {{pod}}",
                ),
            ),
            unit="percentunit",
            steps=((None, "green"), (0.7, "orange"), (0.9, "red")),
            maximum=1.0,
        ),
        Panel(
            title="Does it get the CPU time that it needs?",
            good="Yes: near 0. `throttled`: of the periods of the container's quota; others: of the time in which a process waited for a CPU.",
            otherwise="Raise the container's CPU limit, or take the load away; `framegate doctor` shows the quota.",
            queries=(
                Query(
                    "sum(rate(framegate_container_cpu_throttled_periods_total{@}[@])) / sum(rate(framegate_container_cpu_periods_total{@}[@]))",
                    "throttled",
                ),
                Query("max by (framegate_process) (rate(framegate_process_run_delay_seconds_total{@}[@]))", "{{framegate_process}}"),
            ),
            unit="percentunit",
            steps=((None, "green"), (0.25, "red")),
        ),
        Panel(
            title="How long does a processor not look up?",
            good="99 of 100 times within a few milliseconds.",
            otherwise="The container may be throttled: `framegate doctor` says so; or a processor has too much: `framegate pool set --processors 3`.",
            queries=(Query(quantile(0.99, "framegate_event_loop_lag_seconds", "{@}", "framegate_worker"), "99 %, {{framegate_worker}}"),),
            unit="s",
        ),
    ),
)

HURTS: Final = Dashboard(
    slug="hurts",
    title="Who hurts, and why?",
    description="Why channels wait, why frames and connections are refused or ended, and which endpoints do not answer.",
    panels=_WAITS,
    rows=(_UPSTREAM, _HANDLERS, _LOOPS),
)
