"""proxy.network.authenticator: what a channel uses when it is given nothing else."""

from proxy.network.authenticator import ANONYMOUS, CertificateAuthenticator
from proxy.network.transport import Identity


def test_a_certificate_names_the_principal() -> None:
    assert CertificateAuthenticator().authenticate(Identity(subject="CN=a")) == "CN=a"
    assert CertificateAuthenticator().authenticate(Identity()) == ANONYMOUS
