import dataclasses

from framegate.control.service.quotas import QUOTA_FIELDS, limit_message, node_message, overrides_of, quotas_of
from framegate.control.service.validate import Violations
from framegate.control.status import Limit, NodeLimits
from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.proxy.config.limits import LimitOverride, LimitsConfig, RateLimits

SIX = RateLimits(connections=1, connection_rate=2, request_bytes_rate=3, response_bytes_rate=4, request_frames_rate=5, response_frames_rate=6)


def test_each_quota_of_the_model_has_its_field_in_every_message() -> None:
    assert list(QUOTA_FIELDS.values()) == [field.name for field in dataclasses.fields(RateLimits)]
    for message in (
        limit_message(Limit(listener="a", max_receive_size=9, quotas=SIX)),
        node_message(NodeLimits(quotas=LimitsConfig(per_address=SIX), etag="")).per_address,
    ):
        assert [getattr(message, name) for name in QUOTA_FIELDS] == [1, 2, 3, 4, 5, 6]
        violations = Violations()
        assert RateLimits(**quotas_of(message, QUOTA_FIELDS, "x", violations)) == SIX
        violations.check()


def test_overrides_come_back_as_they_were_what_they_do_not_say_included() -> None:
    overrides = (LimitOverride(network="10.0.0.0/8", connections=0, response_bytes_rate=7), LimitOverride(network="::/0", access="deny"))
    message = node_message(NodeLimits(quotas=LimitsConfig(connections=4, overrides=overrides, protected_listener="b"), etag="e"))
    assert (message.max_connection_count, message.protected_listener, message.etag) == (4, "b", "e")
    violations = Violations()
    assert overrides_of(message.overrides, "x", violations) == overrides
    assert overrides_of([pb2.LimitOverride(network="10.0.0.0/8")], "x", violations) == (LimitOverride(network="10.0.0.0/8"),)
    violations.check()
