"""The interface of an authenticator; implementations live in ``proxy.auth``."""

import abc

from mypy_extensions import mypyc_attr

from proxy.network.transport import Identity

__all__ = ["ANONYMOUS", "Authenticator", "CertificateAuthenticator"]

ANONYMOUS = "ANONYMOUS"


@mypyc_attr(allow_interpreted_subclasses=True)
class Authenticator(abc.ABC):
    """Says who the peer of a channel is, once its transport's handshake is done."""

    @abc.abstractmethod
    def authenticate(self, identity: Identity) -> str:
        """The principal.

        Raises:
            AuthenticationError: the peer is nobody we talk to; the channel is closed with the cause ``auth_failed``.
        """


class CertificateAuthenticator(Authenticator):
    """The certificate's distinguished name, or ``ANONYMOUS`` without one. What a channel uses when it is given no other."""

    def authenticate(self, identity: Identity) -> str:
        return ANONYMOUS if identity.subject is None else identity.subject
