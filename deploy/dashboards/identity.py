"""Identity: handshakes, failures by reason, certificates, logins."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.promql import per_second, quantile, total

__all__ = ["IDENTITY"]

SIDE: Final = "framegate_side"
HANDSHAKE: Final = "framegate_tls_handshake_duration_seconds"
LISTENER: Final = "framegate_listener"
MECHANISM: Final = "framegate_sasl_mechanism"

_TLS: Final = (
    Panel(
        title="How many TLS handshakes are there?",
        good="As many as connections. Versions: 1.3, and 1.2 of old clients.",
        otherwise="Far more than usual: clients that do not keep their connections; `framegate channels list --closed` says why they end.",
        queries=(
            Query(
                per_second("framegate_tls_handshake_count_total{@}", f"{SIDE}, tls_protocol_version"),
                "{{framegate_side}} TLS {{tls_protocol_version}}",
            ),
        ),
        unit="cps",
        stacked=True,
    ),
    Panel(
        title="Why do TLS handshakes fail?",
        good="They do not.",
        otherwise="`framegate channels list --closed --cause tls_failed` names who, and says in words who refused whom; `framegate certificates "
        "list` shows "
        "what we serve.",
        queries=(
            Query(
                per_second(HANDSHAKE + '_count{@, error_type!=""}', f"{SIDE}, error_type") + " or on () vector(0)",
                "{{framegate_side}} {{error_type}}",
            ),
        ),
        unit="cps",
        steps=NONE_IS_GOOD,
        next="hurts",
    ),
    Panel(
        title="How long does a handshake take?",
        good="99 of 100 within 50 ms and what the network adds.",
        otherwise="`framegate status` shows whether processors are busy; RSA keys cost three times what ECDSA keys do.",
        queries=(
            Query(quantile(0.5, HANDSHAKE, '{@, error_type=""}', SIDE), "half, {{framegate_side}}"),
            Query(quantile(0.99, HANDSHAKE, '{@, error_type=""}', SIDE), "99 %, {{framegate_side}}"),
        ),
        unit="s",
        next="hurts",
    ),
    Panel(
        title="How many days do certificates last?",
        good="More than 14.",
        otherwise="`framegate certificates list` says which file it is; replace it, and it is taken while traffic flows. At once: "
        "`framegate certificates reload`.",
        queries=(
            Query(
                "(min by (framegate_certificate) (framegate_tls_certificate_not_after_seconds{@}) - time()) / 86400",
                "{{framegate_certificate}}",
            ),
        ),
        unit="d",
        kind="bars",
        steps=((None, "red"), (3, "orange"), (14, "green")),
        decimals=0,
        nothing="no certificate is served",
    ),
    Panel(
        title="Are files that were replaced taken?",
        good="`taken` whenever one was renewed, `refused` never.",
        otherwise="`framegate certificates list` says what failed; mend the file, then `framegate certificates reload`.",
        queries=(
            Query(
                per_second('framegate_reload_count_total{@, error_type=""}', "framegate_file_kind") + " or on () vector(0)",
                "taken {{framegate_file_kind}}",
            ),
            Query(
                per_second('framegate_reload_count_total{@, error_type="refused"}', "framegate_file_kind") + " or on () vector(0)",
                "refused {{framegate_file_kind}}",
            ),
        ),
        unit="cps",
        next="control",
    ),
    Panel(
        title="How many sessions are resumed?",
        good="Most, where clients come back often.",
        otherwise="A client that offers no ticket makes a whole handshake each time; nothing needs to be done.",
        queries=(
            Query(
                per_second('framegate_tls_handshake_count_total{@, tls_resumed="true"}', SIDE)
                + " / "
                + per_second("framegate_tls_handshake_count_total{@}", SIDE),
                "{{framegate_side}}",
            ),
        ),
        unit="percentunit",
        maximum=1.0,
    ),
)
_SASL: Final = (
    Panel(
        title="Who logs in, and how?",
        good="As many as connections to listeners with `sasl`.",
        otherwise="`framegate users list --listener kafka` shows whom a listener knows.",
        queries=(
            Query(
                f"{per_second('framegate_authentication_count_total{@l}', f'{LISTENER}, {MECHANISM}')} > 0",
                "{{framegate_listener}} {{framegate_sasl_mechanism}}",
            ),
        ),
        unit="cps",
        stacked=True,
    ),
    Panel(
        title="Why are logins refused?",
        good="They are not. `credentials`: a wrong password or token; `denied`: none of those who may; `unavailable`: too many at once.",
        otherwise="`framegate channels list --closed --cause auth_failed` names who; `framegate users list --listener kafka` whom we know.",
        queries=(
            Query(
                per_second('framegate_authentication_count_total{@l, error_type!=""}', f"{LISTENER}, error_type"),
                "{{framegate_listener}} {{error_type}}",
            ),
        ),
        unit="cps",
        steps=NONE_IS_GOOD,
        next="hurts",
    ),
    Panel(
        title="How long does a login take?",
        good="99 of 100 within 100 ms; SCRAM costs milliseconds of the control process for each.",
        otherwise="Questions wait: passwords are checked two at a time. `framegate status` shows how the control process does.",
        queries=(Query(quantile(0.99, "framegate_authentication_duration_seconds", "{@}", MECHANISM), "99 %, {{framegate_sasl_mechanism}}"),),
        unit="s",
        next="control",
    ),
)
_MORE: Final = Row(
    title="And towards upstreams?",
    panels=(
        Panel(
            title="Do upstreams let us in?",
            good="Yes: only lines without a reason.",
            otherwise="A login that is refused is not tried again for 1 s, doubling to 30 s; `framegate upstreams list`, and `framegate doctor` "
            "tries it.",
            queries=(
                Query(
                    f"{per_second('framegate_upstream_authentication_count_total{@}', 'framegate_upstream, error_type')} > 0",
                    "{{framegate_upstream}} {{error_type}}",
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Who is at the door?",
            good="A few: handshakes and logins in progress, and questions of authenticators that wait.",
            otherwise="`framegate channels list` shows connections that are being opened; `handshake_timeout` ends them.",
            queries=(
                Query(total("framegate_tls_handshake_active{@}", SIDE), "opened now, {{framegate_side}}"),
                Query(total("framegate_authentication_questions_waiting{@}"), "questions that wait"),
            ),
            unit="short",
        ),
        Panel(
            title="Which questions were refused because too many waited?",
            good="None: 256 of each listener may wait.",
            otherwise="Clients try again. A flood of logins: `framegate limits set --listener kafka --connection-rate 50` bounds it.",
            queries=(Query(f"{per_second('framegate_authentication_questions_refused_total{@}')} or on () vector(0)", "refused"),),
            unit="cps",
            steps=NONE_IS_GOOD,
        ),
    ),
)

IDENTITY: Final = Dashboard(
    slug="identity",
    title="Identity: who comes in?",
    description="TLS handshakes and certificates, logins of clients, and ours at upstreams.",
    panels=_TLS + _SASL,
    rows=(_MORE,),
)
