"""The table of all metrics of framegate: name, unit, description, attributes and bounds of each. All that is declared here is public.

A metric whose ``source`` is ``control`` has no cells; control counts it itself. Attribute values come from closed lists or are the configured names,
so the layout of the cells follows from this table and the names in the configuration.
"""

from dataclasses import replace
from typing import Final

from framegate.proxy.cause import ORDERLY_CAUSES, Cause
from framegate.proxy.cells.metric import (
    ANSWER_BOUNDS,
    APPEND_BOUNDS,
    BATCH_BOUNDS,
    CONNECTION_BOUNDS,
    FORWARD_BOUNDS,
    HANDLER_BOUNDS,
    HANDSHAKE_BOUNDS,
    LAG_BOUNDS,
    SIZE_BOUNDS,
    WAIT_BOUNDS,
    Kind,
    Metric,
)

PREFIX: Final = "framegate"

CAUSES: Final = tuple(cause.value for cause in Cause)
MUTE_CAUSES: Final = ("memory", "peer", "throttle", "handler", "tap", "admin", "drain")
"""The mute causes of ``framegate.proxy.network``, in the order of their bits."""
DURATION_ERRORS: Final = ("", *(cause for cause in CAUSES if cause not in ORDERLY_CAUSES))

SIDE: Final = "framegate.side"
LISTENER: Final = "framegate.listener"
UPSTREAM: Final = "framegate.upstream"
CAUSE: Final = "framegate.cause"
REASON: Final = "framegate.reason"
DIRECTION: Final = "network.io.direction"
TAP_DIRECTION: Final = "framegate.direction"
MUTE_CAUSE: Final = "framegate.mute.cause"
ERROR_TYPE: Final = "error.type"
STATE: Final = "framegate.state"
PLACE: Final = "framegate.place"
POOL: Final = "framegate.pool"
MEMORY_KIND: Final = "framegate.memory.kind"
QUEUE: Final = "framegate.queue"
TASK: Final = "framegate.task"
ACTION: Final = "framegate.handler.action"
MECHANISM: Final = "framegate.sasl.mechanism"
API: Final = "framegate.kafka.api"
REFUSAL: Final = "framegate.kafka.refusal"
BROKER: Final = "framegate.kafka.broker"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
TLS_VERSION: Final = "tls.protocol.version"
TLS_RESUMED: Final = "tls.resumed"

RATE_LEVEL: Final = "framegate.rate.level"
WORKER: Final = "framegate.worker"
FILE_KIND: Final = "framegate.file.kind"
CERTIFICATE: Final = "framegate.certificate"
CONSUMER: Final = "framegate.consumer"
PROBE: Final = "framegate.probe"
SIGNAL: Final = "framegate.signal"
PRINCIPAL: Final = "framegate.principal"
CLIENT_ID: Final = "framegate.client.id"
CLIENT_ADDRESS: Final = "client.address"
MEASURE: Final = "framegate.measure"
RESOURCE: Final = "framegate.resource"
PRESSURE: Final = "framegate.pressure"

SIDES: Final = ("downstream", "upstream")
END_SIDES: Final = (*SIDES, "internal")  # the side that ended a pair or failed; framegate itself, a handler or an operator is ``internal``
DIRECTIONS: Final = ("receive", "transmit")
REJECT_REASONS: Final = ("frame_too_large", "negative_size", "incomplete")
LOOP_STATES: Final = ("busy", "idle")
MEMORY_KINDS: Final = ("begun", "pending", "tls")  # Uses of the memory pool: frames that have begun, pending sends, ciphertext that waits
TAP_DROP_REASONS: Final = ("queue_full", "disk_full", "disk_error", "sampled", "closed", "undelivered")
TAP_DIRECTIONS: Final = ("request", "response")
HANDLER_ACTIONS: Final = ("pass", "frame", "nothing", "answer", "close", "failed")
"""Results of a handler, in the order of their numbers on the link (``framegate.proxy.relay.handler_wire``)."""
MECHANISMS: Final = ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")  # of SASL; empty: the client has not chosen one
AUTHENTICATION_ERRORS: Final = ("", "credentials", "denied", "mechanism", "protocol", "unavailable")
"""Why a client is refused: its credentials are wrong, its principal is not allowed, its mechanism is not enabled, it broke the protocol, or the check
or our login to the upstream was not possible.
"""
LOGIN_ERRORS: Final = ("credentials", "unavailable")
"""Those of them for which failed logins are ranked; of the latter there is one number for each listener."""
RATE_LEVELS: Final = ("node", "listener", "rule", "address")  # What a rate is for. Single addresses have no series: there are too many.
FAULT_PLACES: Final = ("channel", "callback", "timer", "descriptor", "command", "loop", "tap", "pool")
"""Where an internal error was caught; see ``framegate.proxy.network.faults``."""
FILE_KINDS: Final = ("tls", "sasl", "jwks", "configuration")
"""Files that may be replaced at run time: certificates, keys and authorities; users; keys that sign tokens."""
MEASURED_APIS: Final = (
    "Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup",
    "SyncGroup", "SaslHandshake", "ApiVersions", "CreateTopics", "InitProducerId", "AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit",
    "DescribeConfigs", "SaslAuthenticate", "DescribeCluster", "ConsumerGroupHeartbeat", "ShareFetch", "other",
)  # fmt: skip
"""Kafka's APIs that have series of their own, by name as in ``framegate.proxy.config.selection``: those of producers and consumers, and the first
ones of every client.
"""
PROBES: Final = ("startup", "readiness", "liveness")
RESOURCES: Final = ("cpu", "memory", "io")
PRESSURES: Final = ("some", "full")  # of Linux' pressure stall information: some tasks waited, all of them did
SIGNALS: Final = ("metrics", "traces", "logs")
EXPORT_ERRORS: Final = ("", "failed")
"""How an export ended. None: the collector took it. ``failed``: it did not, with all attempts; the row ``library_log`` says why."""
MINUTE_STATES: Final = ("complete", "lost", "at_most", "unknown")
BROKER_STATES: Final = ("up", "down", "no_port", "gone")
UPSTREAM_STATES: Final = ("connecting", "used")
TLS_ERRORS: Final = (
    "", "certificate_missing", "certificate_expired", "certificate_revoked", "unknown_authority", "name_mismatch", "certificate_refused", "version",
    "cipher", "not_tls", "peer_alert", "closed", "handshake_timeout", "other",
)  # fmt: skip
"""Why a TLS handshake failed (``proxy.network.tls_failure`` decides): a fault of the peer's certificate, no common version or cipher, another alert
of the peer, the end of the connection, or a timeout.
"""
TLS_VERSIONS: Final = ("1.2", "1.3")
APPEND_ERRORS: Final = ("", "disk_full", "disk_error")  # Results of writing a block to the log; the last two are also in ``TAP_DROP_REASONS``
TASKS: Final = (
    "acceptor", "heartbeats", "slot", "handlers", "loop", "shares", "evictions", "rates", "sizing", "access", "clients", "endpoints", "brokers",
    "checks", "configuration", "tap_keeper", "rotation", "authentication", "api_versions", "rows", "library", "callback", "thread", "unraisable",
    "spans",
)  # fmt: skip  # the background tasks of the control process, and other sources of exceptions (``control.task_monitor``)
ACCEPT_ERRORS: Final = ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EPERM", "other")
CONNECT_ERRORS: Final = ("", "refused", "timeout", "tls", "authentication", "closed", "resolution", "abandoned", "other")
"""How an attempt to connect ended. ``closed``: before it was READY; ``resolution``: no address; ``abandoned``: not because of the endpoint."""
EJECTION_REASONS: Final = ("refused", "timeout", "tls", "other", "failures", "latency", "check")
END_ERRORS: Final = ("", "reset", "closed", "stalled", "protocol", "authentication", "unanswered")
"""How an upstream's connection ended. ``closed``: by it, with open requests, before any answer or within a frame; ``stalled``: it moved too
few bytes in time; ``protocol``: what it sent were no frames, too large ones, or no TLS; ``authentication``: it refused a login that was renewed.
``unanswered``: the client ended it, and had waited for an answer for more than 0.25 s.
"""
LOOKUP_ERRORS: Final = ("", "not_found", "temporary", "timeout", "other")
RESPONSE_ERRORS: Final = (
    "offset_out_of_range", "unknown_topic_or_partition", "leader_not_available", "not_leader_or_follower", "request_timed_out",
    "coordinator_load_in_progress", "coordinator_not_available", "not_coordinator", "not_enough_replicas", "illegal_generation",
    "inconsistent_group_protocol", "invalid_group_id", "unknown_member_id", "invalid_session_timeout", "rebalance_in_progress",
    "topic_authorization_failed", "group_authorization_failed", "cluster_authorization_failed", "unsupported_sasl_mechanism", "illegal_sasl_state",
    "unsupported_version", "not_controller", "invalid_request", "invalid_producer_epoch", "invalid_txn_state", "concurrent_transactions",
    "transactional_id_authorization_failed", "sasl_authentication_failed", "group_id_not_found", "fetch_session_id_not_found",
    "invalid_fetch_session_epoch", "member_id_required", "group_max_size_reached", "fenced_instance_id", "throttling_quota_exceeded",
    "producer_fenced", "other",
)  # fmt: skip  # Errors of Kafka's protocol that have series of their own, by name; ``proxy.relay.pairing_stats`` has their numbers
REFUSED_APIS: Final = (
    *(name for name in MEASURED_APIS if name not in ("SaslHandshake", "ApiVersions", "SaslAuthenticate", "other")), "DeleteTopics", "DeleteRecords",
    "CreatePartitions", "DescribeGroups", "ListGroups", "DeleteGroups", "CreateAcls", "DeleteAcls", "AlterConfigs", "IncrementalAlterConfigs",
    "other",
)  # fmt: skip  # APIs whose refused requests are counted by name
REFUSALS: Final = ("api", "topic", "group", "transactional_id", "report_only")  # what a request was refused for; with ``report_only`` it was not


def _metric(name: str, kind: Kind, unit: str, description: str, *attributes: tuple[str, tuple[str, ...]], bounds: tuple[float, ...] = ()) -> Metric:
    return Metric(name=f"{PREFIX}.{name}", kind=kind, unit=unit, description=description, attributes=attributes, bounds=bounds)


def _internal(name: str, description: str, *attributes: tuple[str, tuple[str, ...]]) -> Metric:
    return Metric(name=f"{PREFIX}.{name}", kind="counter", unit="{frame}", description=description, attributes=attributes, exported=False)


def _control(name: str, kind: Kind, unit: str, description: str, *attributes: tuple[str, tuple[str, ...]]) -> Metric:
    return Metric(name=f"{PREFIX}.{name}", kind=kind, unit=unit, description=description, attributes=attributes, source="control")


_LISTENER: Final = (LISTENER, ())
_UPSTREAM: Final = (UPSTREAM, ())
_NAMED: Final = (_UPSTREAM, (SERVER_ADDRESS, ()), (SERVER_PORT, ()))
_BROKER: Final = (BROKER, ())
_ENDPOINT: Final = (*_NAMED, _BROKER)  # an endpoint as configured, or a broker of a cluster, which has no address here
_SIDE: Final = (SIDE, SIDES)
_CERTIFICATE: Final = (CERTIFICATE, ())
_DIRECTION: Final = (DIRECTION, DIRECTIONS)
_TRAFFIC: Final = (*_ENDPOINT, _DIRECTION)
_TAP_DIRECTION: Final = (TAP_DIRECTION, TAP_DIRECTIONS)
_CLIENT: Final = (_LISTENER, (PRINCIPAL, ()), (CLIENT_ID, ()), (CLIENT_ADDRESS, ()))  # a client among the ten first ones

# fmt: off
METRICS: Final = (
    _metric("connection.active", "gauge", "{connection}", "Connections open now.", _SIDE, _LISTENER),
    _metric("connection.accepted", "counter", "{connection}", "Client connections that processors took over.", _LISTENER),
    _metric("connection.closed", "counter", "{connection}", "Pairs that ended, by cause and the side that ended or failed.", _LISTENER,
        (CAUSE, CAUSES), (SIDE, END_SIDES)),
    _metric("connection.duration", "histogram", "s", "Time from accept to close of a client connection.", _SIDE, (ERROR_TYPE, DURATION_ERRORS),
        bounds=CONNECTION_BOUNDS),
    _metric("tls.handshake.duration", "histogram", "s", "Time of one TLS handshake.", _SIDE, (ERROR_TYPE, TLS_ERRORS), bounds=HANDSHAKE_BOUNDS),
    _metric("tls.handshake.count", "counter", "{handshake}", "TLS handshakes that succeeded.", _SIDE, (TLS_VERSION, TLS_VERSIONS),
        (TLS_RESUMED, ("true", "false"))),
    _metric("tls.handshake.active", "gauge", "{handshake}", "Connections in the TLS handshake or in authentication after it.", _SIDE),
    _metric("authentication.count", "counter", "{authentication}", "SASL authentications of clients.", _LISTENER, (MECHANISM, MECHANISMS),
        (ERROR_TYPE, AUTHENTICATION_ERRORS)),
    _metric("authentication.duration", "histogram", "s", "Time of SASL authentications of clients, checks of passwords and tokens included.",
        (MECHANISM, MECHANISMS), bounds=HANDSHAKE_BOUNDS),
    _metric("frame.count", "counter", "{frame}", "Whole frames received from and sent to each side.", _SIDE, _DIRECTION, _LISTENER),
    _metric("io", "counter", "By", "Bytes of frames, headers included, received from and sent to each side.", _SIDE, _DIRECTION, _LISTENER),
    _metric("read.count", "counter", "{read}", "Reads that returned bytes.", _SIDE, _LISTENER),
    _metric("write.count", "counter", "{write}", "Writes of frames that the socket accepted at least in part.", _SIDE, _LISTENER),
    _metric("frame.size", "histogram", "By", "Body sizes of whole frames received.", _SIDE, _LISTENER, bounds=SIZE_BOUNDS),
    _metric("frame.forward.duration", "histogram", "s",
        "Time from the arrival of a run of frames until it was written to the other side's socket, waiting for the processor included.", _LISTENER,
        _TAP_DIRECTION, bounds=FORWARD_BOUNDS),
    _metric("frame.rejected", "counter", "{frame}", "Frames that were not forwarded.", _LISTENER, _SIDE, (REASON, REJECT_REASONS)),
    _metric("frame.reported", "counter", "{frame}", "Frames that were forwarded above the size of a limit rule with report_only.", _LISTENER),
    _metric("frame.cut_short", "counter", "{frame}", "Frames that were forwarded in pieces and never completed.", _LISTENER, _SIDE),
    _metric("frame.lost.io", "counter", "By", "Bytes received that could not be forwarded when a pair ended.", _LISTENER, _SIDE),
    _metric("frame.size.limit", "gauge", "By", "Largest frame body that a client may send.", _LISTENER),
    _metric("throttle.time", "counter", "s", "Time that channels were muted because of rates or slow handlers.", _SIDE, _LISTENER),
    _metric("rate.io.limit", "gauge", "By/s", "Bytes per second that a listener may pass; 0 is unlimited.", _LISTENER, _TAP_DIRECTION),
    _metric("rate.frame.limit", "gauge", "{frame}/s", "Frames per second that a listener may pass; 0 is unlimited.", _LISTENER, _TAP_DIRECTION),
    _metric("rate.node.io.limit", "gauge", "By/s", "Bytes per second that all listeners together may pass; 0 is unlimited.", _TAP_DIRECTION),
    _metric("rate.node.frame.limit", "gauge", "{frame}/s", "Frames per second that all listeners together may pass; 0 is unlimited.", _TAP_DIRECTION),
    _metric("rate.throttled", "gauge", "{rate}", "Rates that delay a connection now.", (RATE_LEVEL, RATE_LEVELS)),
    _metric("memory_pool.limit", "gauge", "By", "Size of a processor's share of the memory pool.", (POOL, ("frames",))),
    _metric("memory_pool.usage", "gauge", "By", "Bytes booked, by purpose.", (POOL, ("frames",)), (MEMORY_KIND, MEMORY_KINDS)),
    _metric("memory_pool.waiting", "gauge", "{turn}", "Large frames that wait for an admission slot.", (POOL, ("frames",))),
    _metric("memory_pool.evicted", "counter", "{connection}", "Connections closed because they held memory while others waited.",
        (POOL, ("frames",))),
    _metric("memory_pool.usage.max", "gauge", "By", "Largest amount booked at once since the start of the processor.", (POOL, ("frames",))),
    _metric("memory_pool.depleted.time", "counter", "s", "Time in which at least one frame waited for memory.", (POOL, ("frames",))),
    _metric("memory_pool.depleted.count", "counter", "{spell}", "Times that memory ran out and became available again.", (POOL, ("frames",))),
    _metric("memory_pool.refused", "counter", "{turn}", "Large frames that did not get an admission slot at once.", (POOL, ("frames",))),
    _metric("memory_pool.wait.duration", "histogram", "s", "Time that large frames waited for an admission slot.", (POOL, ("frames",)),
        bounds=WAIT_BOUNDS),
    _metric("memory_pool.listener.usage", "gauge", "By", "Bytes booked for a listener's connections, both sides.", _LISTENER),
    _metric("channel.muted", "gauge", "{channel}", "Muted channels, by cause.", (MUTE_CAUSE, MUTE_CAUSES)),
    _metric("channel.mute.count", "counter", "{mute}", "Times that a channel was muted, by cause.", (MUTE_CAUSE, MUTE_CAUSES)),
    _metric("channel.mute.time", "counter", "s", "Time that channels were muted, by cause.", (MUTE_CAUSE, MUTE_CAUSES)),
    _metric("channel.pending", "gauge", "{channel}", "Channels with a pending send.", _SIDE, _LISTENER),
    _metric("upstream.connect.duration", "histogram", "s", "Time of one connection attempt, TLS included.", *_ENDPOINT, (ERROR_TYPE, CONNECT_ERRORS),
        bounds=HANDSHAKE_BOUNDS),
    _metric("upstream.authentication.count", "counter", "{authentication}", "SASL authentications to upstreams.", _UPSTREAM,
        (MECHANISM, MECHANISMS[1:]), (ERROR_TYPE, AUTHENTICATION_ERRORS)),
    _metric("upstream.connection.count", "gauge", "{connection}", "Connections to an endpoint.", *_ENDPOINT, (STATE, UPSTREAM_STATES)),
    _metric("upstream.connection.closed", "counter", "{connection}", "Connections to an endpoint that ended.", *_ENDPOINT, (ERROR_TYPE, END_ERRORS)),
    _metric("upstream.endpoint.count", "gauge", "{endpoint}", "Addresses of an endpoint; 0: its name is not resolved.", *_ENDPOINT),
    _metric("upstream.endpoint.down", "gauge", "{endpoint}",
        "Addresses left out, until 10 s after their back-off; the largest number of any processor.", *_ENDPOINT),
    _metric("upstream.endpoint.ejections", "counter", "{ejection}", "Times an address was left out.", *_ENDPOINT, (ERROR_TYPE, EJECTION_REASONS)),
    _metric("upstream.endpoint.probes", "counter", "{probe}", "Connections that tried an address again after its back-off.", *_ENDPOINT),
    _metric("upstream.frame.count", "counter", "{frame}", "Whole frames received from and sent to an endpoint, added up once a second.", *_TRAFFIC),
    _metric("upstream.io", "counter", "By", "Bytes of frames received from and sent to an endpoint, added up once a second.", *_TRAFFIC),
    _metric("upstream.request.open", "gauge", "{request}", "Kafka requests that wait for an endpoint's answer.", *_ENDPOINT),
    _metric("upstream.request.age", "gauge", "s",
        "Age of the oldest Kafka request that waits for an endpoint's answer, without JoinGroup and SyncGroup, "
        "which wait for other clients; of a Fetch, and of others whose clients choose how long they may take, from 60 s on.", *_ENDPOINT),
    _metric("upstream.answer.waiting", "gauge", "{connection}",
        "Connections of other protocols than Kafka on which an endpoint was sent more frames than it has sent, and whose clients wait.", *_ENDPOINT),
    _metric("upstream.answer.age", "gauge", "s", "Longest time for which one of them has waited for a byte from the endpoint.", *_ENDPOINT),
    _metric("upstream.answer.time", "counter", "s",
        "Time that connections of other protocols than Kafka waited until the endpoint sent a byte; looked at once a second, added when it comes.",
        *_ENDPOINT),
    _metric("upstream.answer.asked", "counter", "{frame}",
        "Frames of other protocols than Kafka that an endpoint was sent, on each connection until its last answer; all if it has never answered.",
        *_ENDPOINT),
    _metric("upstream.send.stalled", "gauge", "{connection}",
        "Connections on which an endpoint has taken no byte of what waits for it for more than 20 s.", *_ENDPOINT),
    _metric("upstream.answer.recent", "gauge", "{frame}", "Frames received from an endpoint in the last 20 to 30 s.", *_ENDPOINT),
    _metric("upstream.first_byte.duration", "histogram", "s",
        "Time from the first byte sent on a connection to the first one passed on to its client.", *_ENDPOINT, bounds=ANSWER_BOUNDS),
    _metric("kafka.response.errors", "counter", "{response}",
        "Responses whose head has an error code, by its name; those of topics and partitions do not count.", *_ENDPOINT,
        (ERROR_TYPE, RESPONSE_ERRORS)),
    _metric("kafka.request.open", "gauge", "{request}", "Requests in flight.", _LISTENER),
    _metric("kafka.request.waiting", "gauge", "{connection}",
        "Connections whose oldest request has waited for more than 10 s, longer than it may by design, by its API.", _LISTENER, (API, MEASURED_APIS)),
    _metric("kafka.request.duration", "histogram", "s", "Time from reading a request to reading its response.", _LISTENER, (API, MEASURED_APIS),
        bounds=ANSWER_BOUNDS),
    _metric("kafka.request.io", "counter", "By", "Bytes of request and response bodies.", _LISTENER, (API, MEASURED_APIS), _TAP_DIRECTION),
    _metric("kafka.request.refused", "counter", "{request}",
        "Requests that rules refused, wholly or in part, or with report_only would have refused.", _LISTENER, (API, REFUSED_APIS),
        (REFUSAL, REFUSALS)),
    _metric("kafka.pairing_lost", "counter", "{connection}", "Connections on which responses no longer match requests.", _LISTENER),
    _metric("handler.requests", "counter", "{frame}", "Frames that handlers have handled, by verdict.", _LISTENER, (ACTION, HANDLER_ACTIONS)),
    _metric("handler.queue.size", "gauge", "{frame}", "Frames that wait for a handler or are being handled.", _LISTENER),
    _metric("handler.queue.time", "histogram", "s", "Time that a frame waited for its handler.", _LISTENER, bounds=HANDLER_BOUNDS),
    _metric("handler.time", "histogram", "s", "Time that a handler took for a frame.", _LISTENER, bounds=HANDLER_BOUNDS),
    _metric("handler.response.queue.time", "histogram", "s", "Time that a handler's reply waited for the processor.", _LISTENER,
        bounds=HANDLER_BOUNDS),
    _metric("handler.response.send.time", "histogram", "s", "Time from a handler's reply to writing its last byte.", _LISTENER,
        bounds=HANDLER_BOUNDS),
    _metric("tap.matched", "counter", "{frame}", "Frames that a tap rule matched."),
    _metric("tap.flushed", "counter", "{frame}", "Matched frames that are in the log on disk, as frames or counted in a gap."),
    _metric("tap.frames", "counter", "{frame}", "Frames in the log on disk.", _TAP_DIRECTION),
    _metric("tap.dropped", "counter", "{frame}", "Matched frames that are only counted in a gap of the log, by reason.", (REASON, TAP_DROP_REASONS)),
    _metric("tap.connection.dropped", "counter", "{connection}", "Ends of connections of which the log has only the number."),
    _metric("tap.matched.io", "counter", "By", "Bytes of frames that a tap rule matched, headers included."),
    _metric("tap.io", "counter", "By", "Bytes written to the log."),
    _metric("tap.write.errors", "counter", "{error}", "Writes to the log that failed."),
    _metric("tap.append.duration", "histogram", "s", "Time of one attempt to write a block to the log.", (ERROR_TYPE, APPEND_ERRORS),
        bounds=APPEND_BOUNDS),
    _metric("queue.usage", "gauge", "By", "Bytes in the queue.", (QUEUE, ("tap",))),
    _metric("queue.length", "gauge", "{block}", "Blocks in the queue or being written.", (QUEUE, ("tap",))),
    _metric("event_loop.time", "counter", "s", "Time that the event loop was busy or idle.", (STATE, LOOP_STATES)),
    _metric("event_loop.polls", "counter", "{poll}", "Times that the event loop has polled for events."),
    _metric("event_loop.lag", "histogram", "s", "Time that the event loop was busy between two polls.", bounds=LAG_BOUNDS),
    _metric("link.dropped", "counter", "{row}", "Log rows dropped because the link to the control process was full."),
    _metric("processor.errors", "counter", "{error}", "Internal errors that a processor caught.", (PLACE, FAULT_PLACES)),
    _metric("draining", "gauge", "{drain}", "1 from the first request to drain on, and while a processor drains."),
    _control("listener.upstream", "gauge", "{listener}", "1 for each listener and its upstream.", _LISTENER, _UPSTREAM),
    _control("connection.rejected", "counter", "{connection}", "Connections refused at accept.", _LISTENER,
        (REASON, ("address_denied", "address_connections", "address_connection_rate", "draining"))),
    _control("client.io", "gauge", "By/s", "Bytes per second of the ten clients with most in the last minute, both directions.", *_CLIENT),
    _control("client.frame.rate", "gauge", "{frame}/s", "Frames per second of the ten clients with most in the last minute.", *_CLIENT),
    _control("client.share", "gauge", "{share}",
        "Share of a listener's bytes or frames in the last minute that the client with more than half of them had.", *_CLIENT,
        (MEASURE, ("bytes", "frames"))),
    _control("client.memory.usage", "gauge", "By", "Bytes of the memory pool that the ten clients with most hold.", *_CLIENT),
    _control("client.refusals", "gauge", "{refusal}/s",
        "Connections and frames per second that were refused of the ten clients with most in the last minute.", *_CLIENT),
    _control("client.login.failures", "gauge", "{authentication}/s",
        "Logins per second that failed in the last minute, by the name that was tried and address; `<many>`: different ones.", *_CLIENT,
        (ERROR_TYPE, LOGIN_ERRORS)),
    _control("accept.limited.time", "counter", "s", "Time that connections waited in the backlog because of a limit.", _LISTENER, (REASON,
        ("node_connections", "node_connection_rate", "listener_connections", "listener_connection_rate"))),
    _control("accept.blocked.time", "counter", "s", "Time that an acceptor waited because no processor took its connection.", _LISTENER),
    _control("accept.errors", "counter", "{error}", "Connections that could not be accepted.", _LISTENER, (ERROR_TYPE, ACCEPT_ERRORS)),
    _control("worker.restarts", "counter", "{restart}", "Restarts of processors.", (REASON, ("died", "heartbeat", "commit"))),
    _control("worker.lag.time", "counter", "s", "Time for which a processor's heartbeat stood still, beyond the first second.", (WORKER, ())),
    _control("handler.restarts", "counter", "{restart}", "Restarts of handler processes.", (REASON, ("died", "timeout", "heartbeat", "memory"))),
    _control("broker.count", "gauge", "{broker}",
        "Brokers of a cluster: 1 for the state that a broker is in, 0 for others. Without a broker: none is known.", _UPSTREAM, _BROKER,
        (STATE, BROKER_STATES)),
    _control("broker.connections", "gauge", "{connection}", "Open connections to a broker, and attempts, by port or by host.", _UPSTREAM, _BROKER),
    _control("upstream.lookup.count", "counter", "{lookup}", "Look-ups of the names of endpoints.", *_NAMED, (ERROR_TYPE, LOOKUP_ERRORS)),
    _control("memory.usage", "gauge", "By", "Memory of the container, handlers included; without a limit the resident memory of all processes."),
    _control("memory.limit", "gauge", "By", "Limit of the container's memory; without one the machine's memory."),
    _control("container.memory.kills", "counter", "{process}", "Processes of the container that the kernel killed for memory."),
    _control("container.cpu.limit", "gauge", "{cpu}", "CPUs that the container may use; absent without a quota."),
    _control("container.cpu.periods", "counter", "{period}", "Periods of the container's CPU quota in which it ran."),
    _control("container.cpu.throttled.periods", "counter", "{period}", "Those of them in which it had used up the quota."),
    _control("container.cpu.throttled.time", "counter", "s", "Time for which the container's tasks could not run because the quota was used up."),
    _control("container.pressure.time", "counter", "s",
        "Time in which some or all tasks of the container, else of the machine, waited for a resource.", (RESOURCE, RESOURCES),
        (PRESSURE, PRESSURES)),
    _control("tap.disk.free", "gauge", "By", "Free bytes of the file system of the tap's log."),
    _control("tap.disk.size", "gauge", "By", "Size of that file system."),
    _control("tap.disk.time_left", "gauge", "s", "Time until it is full, by the last ten minutes; absent while it does not fill."),
    _control("tap.usage", "gauge", "By", "Bytes of the tap's log on disk."),
    _control("tap.limit", "gauge", "By", "The tap's budget."),
    _control("tap.ship.failing", "gauge", "{shipper}", "1 if the last attempt to ship the tap's log failed; 0 if it did not."),
    _control("tap.consumer.unreadable", "gauge", "{consumer}", "Consumers of the tap with an unreadable file; segments that they may need are kept."),
    _control("config.revision", "gauge", "{revision}", "Revision of the configuration in force."),
    _control("config.differences", "gauge", "{value}", "Values in force that are not those of the configuration file as it was loaded last."),
    _control("config.file.changed", "gauge", "{file}", "1 while the configuration file has changed since it was loaded and is not applied."),
    _control("reload.count", "counter", "{reload}", "Reloads of replaced files.", (FILE_KIND, FILE_KINDS), (ERROR_TYPE, ("", "refused"))),
    _control("task.failures", "counter", "{failure}", "Unexpected exceptions in background tasks of the control process.", (TASK, TASKS)),
    _control("audit.failures", "counter", "{row}", "Audit rows that could not be written when their change was made."),
    _control("control.lag.time", "counter", "s", "Time by which the event loop of the control process came late, in delays of more than a second."),
    _control("log.dropped", "counter", "{row}", "Log rows dropped because standard output was blocked or closed."),
    _control("authentication.questions.waiting", "gauge", "{question}", "Auth requests that wait for a worker."),
    _control("authentication.questions.refused", "counter", "{question}", "Auth requests refused because the queue was full."),
    _control("config.changes", "counter", "{change}", "Requested changes.", (ERROR_TYPE, ("", "refused", "invalid"))),
    _control("tap.lag", "gauge", "By", "Bytes of the log that a consumer has not read yet.", (CONSUMER, ())),
    _control("tap.lag.time", "gauge", "s", "Age of the oldest frame that a consumer has not read yet.", (CONSUMER, ())),
    _control("tls.certificate.not_after", "gauge", "s", "Expiry of a certificate or revocation list in use, as Unix time.", _CERTIFICATE),
    _control("tls.certificate.not_before", "gauge", "s", "When it began to be valid, as Unix time.", _CERTIFICATE),
    _control("scrape.refused", "counter", "{connection}", "Connections to the Prometheus endpoint that sent no request in time, or were too many."),
    _control("drain.time", "gauge", "s", "Time since the drain began; 0 without a drain."),
    _control("ready", "gauge", "{probe}", "Result of each health probe: 1 is healthy.", (PROBE, PROBES)),
    _control("telemetry.exports", "counter", "{export}", "Exports to a collector, by result.", (SIGNAL, SIGNALS), (ERROR_TYPE, EXPORT_ERRORS)),
    _control("telemetry.dropped", "counter", "{item}", "Data points, spans and log records that were not exported.", (SIGNAL, SIGNALS)),
    _control("telemetry.skipped", "counter", "{span}",
        "Spans that were not made: above 200 connections, or Kafka requests of a processor, per second."),
)
# fmt: on
INTERNAL: Final = (
    _internal("tap.seen", "Frames that a tap rule matched.", _LISTENER, _TAP_DIRECTION),
    _internal("tap.reserved", "What tap.seen has not passed, whenever the processor dies.", _LISTENER, _TAP_DIRECTION),
)  # Counts that control needs when a processor has died; their cells follow those of the metrics


def _pipeline(name: str, kind: Kind, unit: str, description: str, *attributes: tuple[str, tuple[str, ...]], bounds: tuple[float, ...] = ()) -> Metric:
    told = Metric(name=f"{PREFIX}.pipeline.{name}", kind=kind, unit=unit, description=description, attributes=attributes, bounds=bounds)
    return replace(told, source="pipeline")


PIPELINE_METRICS: Final = (
    _pipeline("batch.duration", "histogram", "s", "Time of the Spark job's batches, from trigger to commit.", bounds=BATCH_BOUNDS),
    _pipeline("frames", "counter", "{frame}", "Frames that batches wrote to the tables."),
    _pipeline(
        "minutes",
        "counter",
        "{minute}",
        "Windows (a minute of a stream, listener and direction) in batches; complete: the batch knows of no loss.",
        (STATE, MINUTE_STATES),
    ),
)  # Exported by the Spark job's driver, over OTLP only; they have no cells and are not part of ``METRICS``
