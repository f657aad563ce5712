"""Identity: handshakes, failures by reason, certificates, logins."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query
from dashboards.promql import per_second, seen

__all__ = ["IDENTITY"]

SIDE: Final = "framegate_side"
HANDSHAKE: Final = "framegate_tls_handshake_duration_seconds"
LISTENER: Final = "framegate_listener"
MECHANISM: Final = "framegate_sasl_mechanism"

_TLS: Final = (
    Panel(
        title="Why do TLS handshakes fail?",
        good="They do not.",
        otherwise="`framegate channels list --closed --filter cause=tls_failed` names the clients, and states which side refused and why; "
        "`framegate certificates list` shows the certificates in use.",
        queries=(
            Query(
                seen(per_second(HANDSHAKE + '_count{@, error_type!=""}', f"{SIDE}, error_type"), "error_type"),
                "{{framegate_side}} {{error_type}}",
            ),
        ),
        unit="suffix: failures/s",
        steps=NONE_IS_GOOD,
        next="hurts",
    ),
    Panel(
        title="How many days do certificates last?",
        good="More than 14.",
        otherwise="`framegate certificates list` names the file. Replace it: framegate loads it while traffic flows, or at once with `framegate "
        "certificates reload`.",
        queries=(
            Query(
                "(min by (framegate_certificate) (framegate_tls_certificate_not_after_seconds{@}) - time()) / 86400",
                "{{framegate_certificate}}",
            ),
        ),
        unit="none",
        kind="bars",
        steps=((None, "red"), (3, "orange"), (14, "green")),
        decimals=0,
        nothing="no certificate is served",
    ),
)
_SASL: Final = (
    Panel(
        title="Why are logins refused?",
        good="They are not. `credentials`: a wrong password or token; `denied`: not in `allowed_principals`; `unavailable`: too many at once.",
        otherwise="`framegate channels list --closed --filter cause=auth_failed` names the clients; `framegate users list --listener kafka` shows "
        "the known users.",
        queries=(
            Query(
                seen(per_second('framegate_authentication_count_total{@l, error_type!=""}', f"{LISTENER}, error_type"), "error_type"),
                "{{framegate_listener}} {{error_type}}",
            ),
        ),
        unit="suffix: failures/s",
        steps=NONE_IS_GOOD,
        next="hurts",
    ),
)

IDENTITY: Final = Dashboard(
    slug="identity",
    title="Identity: who comes in?",
    description="TLS handshakes and certificates, logins of clients, and framegate's own logins at upstreams.",
    panels=_TLS + _SASL,
)
