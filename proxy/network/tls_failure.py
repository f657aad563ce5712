"""OpenSSL's errors as sentences: which side refuses the other, and why. OpenSSL's own word follows in parentheses.

An alert is an error of the peer; everything else is refused here. Source of the words: OpenSSL's ``sslerr.h`` and ``x509_vfy.h``, RFC 8446 6.2.
"""

from typing import Any, Final

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError, TlsError, shown
from framegate.proxy.network.certificate import subject_of

OURS: Final = {  # the sentence, and the kind of the error (``proxy.cells.TLS_ERRORS``)
    "peer_did_not_return_a_certificate": ("the {peer} shows no certificate, and one is required", "certificate_missing"),
    "no_shared_cipher": ("the {peer} offers no cipher that is allowed here", "cipher"),
    "no_suitable_key_share": ("the {peer} offers no key exchange that is allowed here", "cipher"),
    "no_suitable_groups": ("the {peer} offers no key exchange that is allowed here", "cipher"),
    "no_shared_group": ("the {peer} offers no key exchange that is allowed here", "cipher"),
    "no_shared_signature_algorithms": ("the {peer} takes no signature that our certificate's key can make", "cipher"),
    "no_suitable_signature_algorithm": ("the {peer} takes no signature that our certificate's key can make", "cipher"),
    "unsupported_protocol": ("the {peer} offers no version of TLS that is allowed here", "version"),
    "version_too_low": ("the {peer} offers no version of TLS that is allowed here", "version"),
    "wrong_ssl_version": ("the {peer} offers no version of TLS that is allowed here", "version"),
    "wrong_version_number": ("the {peer} sends what is no TLS record", "not_tls"),
    "record_too_large": ("the {peer} sends what is no TLS record", "not_tls"),
    "packet_length_too_long": ("the {peer} sends what is no TLS record", "not_tls"),
    "unexpected_message": ("the {peer} sends a TLS message out of turn", "other"),
    "no_renegotiation": ("the {peer} wants to renegotiate, which is never allowed", "other"),
    "decryption_failed_or_bad_record_mac": ("a record of the {peer} was changed on its way, or was never encrypted for us", "other"),
}
ALERTS: Final = {
    "alert_unknown_ca": "the {peer} does not know the authority of our certificate",
    "alert_bad_certificate": "the {peer} refuses our certificate",
    "alert_certificate_unknown": "the {peer} refuses our certificate, and does not say why",
    "alert_unsupported_certificate": "the {peer} refuses the kind of certificate that ours is",
    "alert_certificate_expired": "the {peer} says that our certificate has expired",
    "alert_certificate_revoked": "the {peer} says that our certificate is revoked",
    "alert_certificate_required": "the {peer} requires a certificate, and we show none",
    "alert_access_denied": "the {peer} does not let us in, though our certificate is good",
    "alert_decrypt_error": "the {peer} could not verify what our key has signed",
    "alert_protocol_version": "the {peer} refuses the versions of TLS that are allowed here",
    "alert_insufficient_security": "the {peer} wants stronger ciphers than are allowed here",
    "alert_handshake_failure": "the {peer} finds no cipher, key exchange or certificate that it can use",
    "alert_no_application_protocol": "the {peer} speaks none of our protocols (ALPN)",
    "unrecognized_name": "the {peer} does not know the host that it was asked for (SNI)",
    "alert_internal_error": "the {peer} has an error of its own",
    "alert_user_cancelled": "the {peer} has given up",
}
KINDS: Final = {
    "not_tls": "not_tls",
    "alert_certificate_required": "certificate_missing",  # an upstream requires a certificate of framegate
    "alert_insufficient_security": "cipher",
    "alert_protocol_version": "version",
}  # The kind of an alert, and of ``not_tls``. Other alerts are ``peer_alert``; for certificates refused here see ``VERDICTS``.
VERDICTS: Final = {
    2: "unknown_authority",  # the issuer's certificate is missing
    10: "certificate_expired",
    18: "unknown_authority",  # self-signed
    19: "unknown_authority",  # self-signed certificate in the chain
    20: "unknown_authority",  # the issuer's certificate is not known locally
    21: "unknown_authority",  # the first certificate cannot be verified
    23: "certificate_revoked",
    27: "unknown_authority",  # not trusted for this purpose
    62: "name_mismatch",
    63: "name_mismatch",
    64: "name_mismatch",
}  # By OpenSSL's number (``X509_V_ERR_…``, Python's ``verify_code``). All others, such as one that is not valid yet: ``certificate_refused``.
PREFIXES: Final = ("sslv3_", "tlsv1_", "tlsv13_")
LATE: Final = "; it looked at what we showed behind the handshake, as TLS 1.3 has it"


def describe(error: Exception, peer: str, *, unproven: bool = False, tls: Any = None) -> TlsError:
    """Make a TlsError of OpenSSL's error. The reason is OpenSSL's word in lower case, such as ``certificate_verify_failed``.

    Args:
        peer: ``client`` or ``upstream``.
        unproven: the handshake was finished, and the peer has sent no data since.
        tls: the inner SSL object of the handshake; it knows the certificate that it refuses.
    """
    reason = str(getattr(error, "reason", None) or _word(error) or type(error).__name__).lower()
    word = _bare(reason)
    verified = str(getattr(error, "verify_message", None) or "").rstrip(".")
    if verified:
        text = f"the {peer}'s certificate is refused: {verified}{_subject(tls)}"
    elif word in ALERTS:
        text = ALERTS[word].format(peer=peer) + (LATE if unproven else "")
    elif reason in OURS:
        text = OURS[reason][0].format(peer=peer)
    else:
        text = str(error.args[-1] if error.args else error)
    failure = TlsError(f"TLS failed: {text} ({reason})", reason=reason)
    failure.__cause__ = error
    return failure


def handshake_error(cause: Cause | None, error: BaseException | None) -> str:
    """Return the kind of a failed handshake (one of ``proxy.cells.TLS_ERRORS``), from the cause and the error of the closed channel."""
    if isinstance(error, TlsError):
        word = _bare(error.reason)
        if word == "certificate_verify_failed":
            return VERDICTS.get(int(getattr(error.__cause__, "verify_code", 0)), "certificate_refused")
        if word in OURS:
            return OURS[word][1]
        return KINDS.get(word, "peer_alert" if word in ALERTS or word.startswith("alert_") else "other")
    if cause is Cause.HANDSHAKE_TIMEOUT or cause is Cause.UPSTREAM_TIMEOUT:
        return "handshake_timeout"
    return "closed" if cause in (Cause.PEER_CLOSED, Cause.PEER_RESET, Cause.NO_DATA, Cause.TLS_FAILED) else "other"


def _subject(tls: Any) -> str:
    """The subject of the certificate that was refused. It is what the peer says: nothing of it is proven."""
    chain = None if tls is None else tls.get_verified_chain()  # as far as OpenSSL came
    if not chain:
        return ""
    import ssl  # here, because a processor without TLS does not load it

    try:
        subject = subject_of(chain[0].public_bytes(ssl._ssl.ENCODING_DER))  # type: ignore[attr-defined]
    except AuthenticationError:
        return ""
    return "; it is of " + shown(subject).replace("\\\\", "\\")  # its own backslashes are escapes


def _bare(reason: str) -> str:
    """Strip the prefix of the version that introduced OpenSSL's word."""
    for prefix in PREFIXES:
        reason = reason.removeprefix(prefix)
    return reason


def _word(error: Exception) -> str:
    """Find OpenSSL's word if Python has no name for it. It is in the text: ``[SSL] tlsv1 alert no application protocol (_ssl.c:1006)``."""
    text = str(error.args[-1] if error.args else "")
    return text.removeprefix("[SSL] ").partition(" (_ssl.c")[0].replace("ssl/tls", "sslv3").replace(" ", "_") if text.startswith("[SSL] ") else ""
