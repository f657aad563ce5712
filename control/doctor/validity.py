"""How long certificates and revocation lists have yet, and which keys and signatures are weak by today's measure."""

from typing import TYPE_CHECKING, Final

from control.configuration.units import counted

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["DAY_S", "days", "ends_soon", "weakness"]

DAY_S: Final = 86_400.0
_SOON_S: Final = 14 * DAY_S
_LEAST_RSA: Final = 2_048
_LEAST_CURVE: Final = 256
_BROKEN: Final = ("md5", "sha1")


def ends_soon(begins: float, ends: float, now: float) -> bool:
    """Whether less is left than 14 days, and than a quarter of its life: who renews does so earlier, also of what lives for a day only."""
    return ends - now < min(_SOON_S, (ends - begins) / 4)


def days(ends: float, now: float) -> str:
    """The time left, in words; of what has ended, how long ago."""
    left = ends - now
    if left < 0:
        return f"ended {_long(-left)} ago"
    return f"ends in {_long(left)}"


def _long(seconds: float) -> str:
    return f"{seconds / DAY_S:.0f} days" if seconds >= 2 * DAY_S else counted(round(seconds / 3600), "hour")


def weakness(certificate: "x509.Certificate") -> str | None:
    """What is weak of a certificate's key, or its maker's signature; None when nothing is. A signature of one's own on oneself proves nothing."""
    from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa

    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _LEAST_RSA:
        return f"its RSA key has {key.key_size} bits, less than {_LEAST_RSA}"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.key_size < _LEAST_CURVE:
        return f"its key is on the curve {key.curve.name}, of {key.curve.key_size} bits"
    if isinstance(key, dsa.DSAPublicKey):
        return "its key is for DSA, which TLS 1.3 does not know"
    algorithm = certificate.signature_hash_algorithm
    if algorithm is not None and algorithm.name in _BROKEN and certificate.issuer != certificate.subject:
        return f"it is signed with {algorithm.name.upper()}"
    return None
