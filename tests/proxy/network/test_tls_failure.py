"""framegate.proxy.network.tls_failure: sentences instead of OpenSSL's words, which stay behind them."""

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from framegate.proxy.cause import Cause
from framegate.proxy.cells import TLS_ERRORS
from framegate.proxy.errors import TlsError
from framegate.proxy.network.tls_failure import ALERTS, KINDS, OURS, VERDICTS, describe, handshake_error
from tests.fakes.cases import each_of
from tests.fakes.certificates import Authority


def error(reason: str | None, **fields: Any) -> ssl.SSLError:
    made = ssl.SSLError(1, f"[SSL: {reason}] in OpenSSL's words (_ssl.c:1006)")
    made.reason = reason  # type: ignore[assignment]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@each_of(
    ("reason", "text"),
    [
        ("NO_SHARED_CIPHER", "the client offers no cipher that is allowed here"),
        ("UNSUPPORTED_PROTOCOL", "the client offers no version of TLS that is allowed here"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "the client shows no certificate, and one is required"),
        ("TLSV1_ALERT_UNKNOWN_CA", "the client does not know the authority of our certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "the client says that our certificate has expired"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "the client requires a certificate, and we show none"),
        ("TLSV1_UNRECOGNIZED_NAME", "the client does not know the host that it was asked for (SNI)"),
    ],
)
def test_the_sentence_says_which_side_refuses_and_why(reason: str, text: str) -> None:
    found = describe(error(reason), "client")
    assert str(found) == f"TLS failed: {text} ({reason.lower()})"
    assert found.reason == reason.lower()


def test_a_certificate_that_was_refused_says_for_what() -> None:
    found = describe(error("CERTIFICATE_VERIFY_FAILED", verify_message="certificate revoked."), "upstream")
    assert str(found) == "TLS failed: the upstream's certificate is refused: certificate revoked (certificate_verify_failed)"


def test_the_subject_of_a_certificate_that_was_refused_is_escaped_once(tmp_path: Path) -> None:
    pem, _ = Authority(tmp_path).leaf_pem("a,b\\c\nd")
    shown = SimpleNamespace(public_bytes=lambda _encoding: ssl.PEM_cert_to_DER_cert(pem.decode()))
    tls = SimpleNamespace(get_verified_chain=lambda: [shown])
    found = describe(error("CERTIFICATE_VERIFY_FAILED", verify_message="certificate revoked."), "client", tls=tls)
    assert r"; it is of CN=a\,b\\c\nd,O=Test (" in str(found)


def test_a_refusal_behind_the_handshake_says_that_it_is_one() -> None:
    late = str(describe(error("TLSV1_ALERT_UNKNOWN_CA"), "upstream", unproven=True))
    assert "behind the handshake" in late
    assert "behind the handshake" not in str(describe(error("WRONG_VERSION_NUMBER"), "upstream", unproven=True))


def test_what_has_no_sentence_keeps_openssls() -> None:
    found = describe(error("BAD_ECPOINT"), "client")
    assert "in OpenSSL's words" in str(found)
    assert found.reason == "bad_ecpoint"
    assert describe(ssl.SSLError(), "client").reason == "sslerror"


def test_a_word_that_python_does_not_know_is_in_the_text() -> None:
    found = describe(ssl.SSLError(1, "[SSL] tlsv1 alert no application protocol (_ssl.c:1006)"), "upstream")
    assert found.reason == "tlsv1_alert_no_application_protocol"
    assert "the upstream speaks none of our protocols (ALPN)" in str(found)


# What they come to; what OpenSSL really says is in tests/proxy/relay/test_handshakes.py.


def test_every_word_comes_to_one_of_the_list() -> None:
    assert {kind for _, kind in OURS.values()} | set(KINDS.values()) | set(VERDICTS.values()) <= set(TLS_ERRORS)
    assert {word for word in KINDS if word not in OURS and word not in ALERTS} == {"not_tls"}
    found = {word: handshake_error(Cause.TLS_FAILED, TlsError("", reason=word)) for word in (*OURS, *ALERTS)}
    assert set(found.values()) <= set(TLS_ERRORS) - {""}
    assert {word for word, kind in found.items() if kind == "other"} == {
        "unexpected_message",
        "no_renegotiation",
        "decryption_failed_or_bad_record_mac",
    }


@each_of(
    ("code", "kind"),
    [(9, "certificate_refused"), (10, "certificate_expired"), (12, "certificate_refused"), (19, "unknown_authority"), (64, "name_mismatch")],
)
def test_a_certificate_that_is_refused_says_for_what(code: int, kind: str) -> None:
    refused = describe(error("CERTIFICATE_VERIFY_FAILED", verify_message="so", verify_code=code), "client")
    assert handshake_error(Cause.TLS_FAILED, refused) == kind
    assert handshake_error(Cause.TLS_FAILED, TlsError("", reason="certificate_verify_failed")) == "certificate_refused", "nobody knows why"


@each_of(
    ("cause", "kind"),
    [
        (Cause.HANDSHAKE_TIMEOUT, "handshake_timeout"),
        (Cause.UPSTREAM_TIMEOUT, "handshake_timeout"),
        (Cause.PEER_CLOSED, "closed"),
        (Cause.PEER_RESET, "closed"),
        (Cause.NO_DATA, "closed"),
        (Cause.TLS_FAILED, "closed"),
        (Cause.DRAINED, "other"),
        (None, "other"),
    ],
)
def test_without_an_error_the_cause_says_it(cause: Cause | None, kind: str) -> None:
    assert handshake_error(cause, None) == kind
