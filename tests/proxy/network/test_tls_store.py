"""framegate.proxy.network.tls_store: which context a client meets."""

import ssl

from framegate.proxy.network.tls_store import ServerStore
from tests.fakes.cases import each_of

DEFAULT, EXACT, BELOW = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(3))
STORE = ServerStore(DEFAULT, {"a.example.org": EXACT, "*.example.org": BELOW, "b.org": EXACT})


@each_of(
    ("host", "context"),
    [
        ("a.example.org", EXACT),
        ("other.example.org", BELOW),
        ("b.org", EXACT),
        ("x.b.org", DEFAULT),
        ("example.org", DEFAULT),
        ("two.labels.example.org", DEFAULT),
        ("*.example.org", BELOW),
        (".example.org", BELOW),
        ("org", DEFAULT),
        ("", DEFAULT),
    ],
)
def test_the_exact_name_goes_before_the_pattern_and_the_pattern_before_the_default(host: str, context: ssl.SSLContext) -> None:
    assert STORE.context(host) is context


def test_the_first_message_is_read_only_where_something_depends_on_it() -> None:
    assert STORE.reads_hello
    assert ServerStore(DEFAULT, {}, ("kafka",)).reads_hello
    assert not ServerStore(DEFAULT, {}).reads_hello


@each_of(("asked", "agreed"), [([], True), (["kafka"], True), (["h2", "kafka"], True), (["h2"], False)])
def test_who_names_protocols_must_name_one_of_ours(asked: list[str], agreed: bool) -> None:
    assert ServerStore(DEFAULT, {}, ("kafka", "x")).agrees(asked) is agreed
    assert STORE.agrees(asked)
