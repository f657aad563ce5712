"""A route: one listener, the upstream behind it, and what all their pairs share."""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.relay.cluster import RouteBrokers
from framegate.proxy.relay.counters import ListenerCounters
from framegate.proxy.relay.handled_connection import HandlerMetrics
from framegate.proxy.relay.kafka_rules import KafkaRulesInForce
from framegate.proxy.relay.limit_rules import LimitRules
from framegate.proxy.relay.login import Logins
from framegate.proxy.relay.revocation import Revocations
from framegate.proxy.relay.upstream import Upstream

__all__ = ["Route"]


class Route:
    """What the pairs of one listener share.

    Attributes:
        listener: its name.
        upstream: where its pairs connect; other listeners may share it. None: a handler answers.
        protocol: ``framed`` or ``kafka``.
        kafka: requests are paired with answers.
        options: of client channels; ``options.limit`` is the listener's max_receive_size.
        upstream_options: of channels to the upstream, by the endpoint's ``server_name``.
        half_close_ns: how long one direction may outlive the other without a byte passing.
        waits_before_data: a client that ends its stream before its first byte may read what the server says first.
        counters: what is counted.
        handler: frames go to one, and this is what it counts; None: there is none.
        authenticates: clients authenticate by SASL, and may have to do it again.
        logins: the logins to the upstream; None: it requires none.
        send_proxy_protocol: the version of the header that connections to the upstream begin with; empty: none.
        revoked: revoked users and certificates; None: their connections go on.
        rules: which Kafka APIs and names clients may use; None: all.
        brokers: how clients reach each broker of a cluster; None: the upstream is no cluster.
        limit_rules: the limits of some of its clients.
        is_local: only clients on this machine, or in this pod, reach the listener.
    """

    def __init__(
        self,
        *,
        listener: str,
        upstream: Upstream | None,
        protocol: str,
        options: ChannelOptions,
        upstream_options: dict[str, ChannelOptions],
        half_close_ns: i64,
        waits_before_data: bool,
        counters: ListenerCounters,
        handler: HandlerMetrics | None = None,
        authenticates: bool = False,
        logins: Logins | None = None,
        revoked: Revocations | None = None,
        send_proxy_protocol: str = "",
        brokers: RouteBrokers | None = None,
        rules: KafkaRulesInForce | None = None,
        limit_rules: LimitRules | None = None,
        is_local: bool = False,
    ) -> None:
        self.listener: Final = listener
        self.upstream: Final = upstream
        self.protocol: Final = protocol
        self.kafka: Final[bool] = protocol == "kafka"
        self.options: Final = options
        self.upstream_options: Final = upstream_options
        self.half_close_ns: Final[i64] = half_close_ns
        self.waits_before_data: Final[bool] = waits_before_data
        self.counters: Final = counters
        self.handler: Final = handler
        self.authenticates: Final[bool] = authenticates
        self.logins: Final = logins
        self.revoked: Final = revoked
        self.send_proxy_protocol: Final = send_proxy_protocol
        self.brokers: Final = brokers
        self.rules: Final = rules
        self.is_local: Final[bool] = is_local
        self.limit_rules: Final = LimitRules(listener, options.limit) if limit_rules is None else limit_rules
