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


class Route:
    """What the pairs of one listener share."""

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
        self.listener: Final = listener  # its name
        self.upstream: Final = upstream  # where its pairs connect; other listeners may share it. None: a handler answers.
        self.protocol: Final = protocol  # ``framed`` or ``kafka``
        self.kafka: Final[bool] = protocol == "kafka"  # requests are paired with answers
        self.options: Final = options  # of client channels; ``options.limit`` is the listener's max_receive_size
        self.upstream_options: Final = upstream_options  # of channels to the upstream, by the endpoint's ``server_name``
        self.half_close_ns: Final[i64] = half_close_ns  # how long one direction may outlive the other without a byte passing
        # a client that ends its stream before its first byte may read what the server says first
        self.waits_before_data: Final[bool] = waits_before_data
        self.counters: Final = counters  # what is counted
        self.handler: Final = handler  # frames go to one, and this is what it counts; None: there is none
        self.authenticates: Final[bool] = authenticates  # clients authenticate by SASL, and may have to do it again
        self.logins: Final = logins  # the logins to the upstream; None: it requires none
        self.revoked: Final = revoked  # revoked users and certificates; None: their connections go on
        self.send_proxy_protocol: Final = send_proxy_protocol  # the version of the header that connections to the upstream begin with; empty: none
        self.brokers: Final = brokers  # how clients reach each broker of a cluster; None: the upstream is no cluster
        self.rules: Final = rules  # which Kafka APIs and names clients may use; None: all
        self.is_local: Final[bool] = is_local  # only clients on this machine, or in this pod, reach the listener
        self.limit_rules: Final = LimitRules(listener, options.limit) if limit_rules is None else limit_rules  # the limits of some of its clients
