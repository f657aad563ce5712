"""framegate.control.service.certificate_peers: whom a certificate is of. Real sockets and certificates: test_sockets."""

import hashlib
import math
import ssl
import time
from pathlib import Path
from typing import Any

from framegate.control.service.certificate_peers import CertificatePeers
from framegate.control.v1.options_pb2 import Role
from framegate.proxy.config.model import AdminTcp
from framegate.proxy.config.tls import PrincipalConfig
from tests.fakes.certificates import Authority


class Tls:
    """A connection with a client's certificate, whose session was resumed: nothing was verified again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sslobj = self

    def get_verified_chain(self) -> list[Any]:
        return []

    def getpeercert(self, binary_form: bool = False) -> Any:
        return ssl.PEM_cert_to_DER_cert(Path(self.path).read_text()) if binary_form else ssl._ssl._test_decode_cert(self.path)  # type: ignore[attr-defined]


def test_a_principal_has_the_highest_role_whose_list_has_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for names, rules, expected in (
        ({"view": ("RULE:.*",), "operate": ("CN=ada,O=Test",)}, ("DEFAULT",), ("CN=ada,O=Test", Role.ROLE_OPERATE)),
        ({"view": ("ada",), "admin": ("ada",)}, ("RULE:CN=(.*),O=.*/$1/",), ("ada", Role.ROLE_ADMIN)),
        ({"view": ("bob",)}, ("RULE:CN=(.*),O=.*/$1/",), ("ada", Role.ROLE_UNSPECIFIED)),
        ({"view": ("RULE:.*",)}, ("RULE:CN=bob/$0/",), ("CN=ada,O=Test", Role.ROLE_UNSPECIFIED)),
    ):
        files = dict.fromkeys(("certificate", "key", "client_ca"), "unread")
        config = AdminTcp(address="127.0.0.1:0", **files, principal=PrincipalConfig(rules=rules), **names)
        peer = CertificatePeers(config).peer(Tls(authority.leaf("ada")[0]), "10.0.0.1:5")  # type: ignore[arg-type]
        assert (peer.fields["who"], peer.role) == expected
        assert (len(peer.fields["certificate"]), peer.fields["address"], peer.local) == (64, "10.0.0.1:5", False)
        assert time.time() < peer.ends_s < math.inf
        assert [hashlib.sha256(item).hexdigest() for item in peer.chain] == [peer.fields["certificate"]]
