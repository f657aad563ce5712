"""proxy.network.tls_failure: sentences instead of OpenSSL's words, which stay behind them."""

import ssl
from typing import Any

import pytest

from proxy.network.tls_failure import describe


def error(reason: str | None, **fields: Any) -> ssl.SSLError:
    made = ssl.SSLError(1, f"[SSL: {reason}] in OpenSSL's words (_ssl.c:1006)")
    made.reason = reason  # type: ignore[assignment]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
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
def test_who_refuses_whom_and_why(reason: str, text: str) -> None:
    found = describe(error(reason), "client")
    assert str(found) == f"TLS failed: {text} ({reason.lower()})"
    assert found.reason == reason.lower()


def test_a_certificate_that_was_refused_says_for_what() -> None:
    found = describe(error("CERTIFICATE_VERIFY_FAILED", verify_message="certificate revoked."), "upstream")
    assert str(found) == "TLS failed: the upstream's certificate is refused: certificate revoked (certificate_verify_failed)"


def test_a_refusal_behind_the_handshake_says_that_it_is_one() -> None:
    late = str(describe(error("TLSV1_ALERT_UNKNOWN_CA"), "upstream", unproven=True))
    assert "behind the handshake" in late
    assert "behind the handshake" not in str(describe(error("WRONG_VERSION_NUMBER"), "upstream", unproven=True))


def test_what_has_no_sentence_keeps_openssls() -> None:
    found = describe(error("BAD_ECPOINT"), "client")
    assert "in OpenSSL's words" in str(found)
    assert found.reason == "bad_ecpoint"
    assert describe(ssl.SSLError(), "client").reason == "sslerror"
