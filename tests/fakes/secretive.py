"""A whole framegate in which every secret is a canary: clients and upstreams with every mechanism, files of every kind, the tap on, a collector."""

import base64
import contextlib
import hashlib
import json
import re
import socket
import struct
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from framegate.control.demo.certificates import Certificates, create
from framegate.control.identity.passwords import keys_of, new_credentials
from framegate.control.identity.users_file import changing, read_users
from framegate.proxy.auth.auth_requests import WantScramKeys
from framegate.proxy.auth.mechanism import Ask, Reply
from framegate.proxy.auth.scram import HASHES, ScramClient
from framegate.proxy.auth.server import MECHANISMS
from tests.fakes.canaries import Canaries
from tests.fakes.framegate import Framegate
from tests.fakes.otlp_receiver import GrpcReceiver
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.sasl_frames import ITERATIONS, SALT, handshake, token
from tests.fakes.upstream import ask, frame, read_frame

USER = "alice"
ISSUER, AUDIENCE = "https://id.example.com", "kafka"


class Secretive:
    """What a test gets.

    Attributes:
        canaries: all that must be nowhere; ``password`` is of ``USER``, ``wrong`` of nobody.
        marker: what may be seen: it stands in a request that the tap records, and in principals.
        logins: to upstreams: names of listeners, and whether the broker lets us in.
        answers: what was said when it was asked.
    """

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.folder = folder
        self.canaries = Canaries()
        self.marker = Canaries()
        self.marked = self.marker.word("marker")
        self.password, self.wrong = self.canaries.text("password of a client"), self.canaries.text("wrong password of a client")
        self.certificates: Certificates = create(folder / "tls")
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.collector = undo.enter_context(GrpcReceiver())
        with changing(self.folder / "users") as users:
            users.add(USER, new_credentials(self.password, iterations=4096))
        public = json.loads(ECAlgorithm.to_jwk(self.key.public_key()))
        (self.folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
        self._keep_keys()
        self.logins: dict[str, bool] = {}
        self.answers: list[bytes] = []
        upstreams, listeners = self._upstreams(undo)
        self.open_broker = SaslBroker({USER: self.password})
        undo.callback(self.open_broker.close)
        upstreams.append({"name": "open", "endpoints": [self.open_broker.address]})
        common = {"address": "127.0.0.1:0", "protocol": "kafka", "max_receive_size": "1MiB", "timeouts": {"failed_authentication": "0ms"}}
        sasl = {
            "mechanisms": list(MECHANISMS),
            "users": "users",
            "tokens": {"jwks": "jwks.json", "issuer": ISSUER, "audience": AUDIENCE},
        }
        tls = {"certificate": str(self.certificates.server), "key": str(self.certificates.server_key)}
        listeners += [
            {"name": "sasl", **common, "handler": "framegate.proxy.handler.echo:echo", "sasl": sasl},
            {"name": "tls", **common, "handler": "framegate.proxy.handler.echo:echo", "sasl": sasl, "tls": tls},
            {"name": "through", **common, "upstream": "open"},
        ]
        otlp = {"endpoint": self.collector.endpoint, "interval": "2s", "signals": ["metrics", "traces", "logs"]}
        config = {
            "memory_pool": {"size": "32MiB"},
            "rotation": {"poll": "100ms", "grace": "200ms"},
            "handlers": {"processes": 1},
            "telemetry": {"prometheus": {"address": "127.0.0.1:0"}, "otlp": otlp},
            "listeners": listeners,
            "upstreams": upstreams,
            "tap": {"directory": "tap", "rules": [{"name": "all"}]},
        }
        self.proxy = undo.enter_context(Framegate(folder, config))

    # --- secrets ---------------------------------------------------------------------------------------------------------------

    def _keep_keys(self) -> None:
        """What is derived of the password, in the file and on the way; and what keys are made of."""
        file = read_users(self.folder / "users")
        self.canaries.keep("the file of users: decoy", file.decoy)
        for mechanism, item in file.users[USER].items():
            self._keep_derived(mechanism, self.password, item.salt, item.iterations)
        private = json.loads(ECAlgorithm.to_jwk(self.key))
        self.canaries.keep("the issuer's key", private["d"])
        for name, path in (("server", self.certificates.server_key), ("client", self.certificates.client_key)):
            key = serialization.load_pem_private_key(path.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self.canaries.keep(f"private key of the {name}", key.private_numbers().private_value.to_bytes(32, "big"))
            for number, line in enumerate(path.read_text().splitlines()[1:-1]):
                if len(line) >= 40:
                    self.canaries.keep(f"private key of the {name}, line {number}", line if number else line[36:])  # before, all keys are alike

    def _keep_derived(self, mechanism: str, password: str, salt: bytes, iterations: int, whose: str = USER) -> None:
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
        keys = keys_of(mechanism, password, salt, iterations)
        made = {"SaltedPassword": salted, "ClientKey": keys.client_key, "ServerKey": keys.server_key}
        made["StoredKey"] = hashlib.new(name, keys.client_key).digest()
        for kind, key in made.items():
            self.canaries.keep(f"{kind} of {whose}, {mechanism}", key)

    def token(self, place: str, *, signer: Any = None, **claims: Any) -> str:
        """A signed token, with a canary in it; its signature, and what is within, are canaries as well."""
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": time.time() + 3600, "jti": self.canaries.word(f"{place}: within")}
        made = jwt.encode({**usual, **claims}, signer or self.key, "ES256", headers={"kid": "k"})
        self.canaries.keep(f"{place}: signature", made.rpartition(".")[2])
        return made

    # --- upstreams -------------------------------------------------------------------------------------------------------------

    def _upstreams(self, undo: contextlib.ExitStack) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Upstreams with SASL, each with a listener of the same name; brokers that let nobody in say why with the secret in their words."""
        upstreams, listeners = [], []
        echoes = {"raw": "{}", "base64": "{base64}", "hex": "{hex}", "part": "{part}"}
        plans = [(mechanism, True, "") for mechanism in MECHANISMS]
        plans += [("PLAIN", False, form) for form in echoes.values()] + [("OAUTHBEARER", False, form) for form in echoes.values()]
        plans += [(mechanism, False, "no") for mechanism in HASHES]
        for number, (mechanism, good, form) in enumerate(plans):
            name = f"up-{number}"
            place = f"secret of {mechanism} to an upstream, {number}"
            secret = self.canaries.word(place) if mechanism == "OAUTHBEARER" else self.canaries.text(place)
            broker = SaslBroker({"gate": secret} if good else {}, tokens={secret: "gate"} if good else {})
            encoded = base64.b64encode(f"\0gate\0{secret}".encode()).decode()
            words = form.format(secret, base64=encoded, hex=secret.encode().hex(), part=secret[-14:])
            broker.words = f"no: {words}"
            undo.callback(broker.close)
            path = self.folder / f"secret-{number}"
            path.write_text(secret + "\n")
            path.chmod(0o600)
            file = {"token_file": str(path)} if mechanism == "OAUTHBEARER" else {"user": "gate", "password_file": str(path)}
            upstreams.append({"name": name, "endpoints": [broker.address], "sasl": {"mechanism": mechanism, **file}})
            listeners.append({"name": name, "address": "127.0.0.1:0", "protocol": "kafka", "max_receive_size": "1MiB", "upstream": name})
            self.logins[name] = good
            if mechanism in HASHES:
                self._keep_derived(mechanism, secret, SALT, ITERATIONS, whose=name)
        return upstreams, listeners

    def secret_file(self, name: str) -> Path:
        """Of the login of a listener's upstream."""
        return self.folder / f"secret-{name.removeprefix('up-')}"

    # --- clients ---------------------------------------------------------------------------------------------------------------

    def ask(self, listener: str) -> bytes:
        """What a request is answered with; nothing where the connection ends."""
        request = struct.pack(">hhih", 3, 12, 7, -1) + self.marked.encode()
        with self.proxy.connect(listener) as client:
            client.sendall(frame(request))
            try:
                return read_frame(client)
            except (EOFError, ConnectionError):
                return b""


def exchange(sock: socket.socket, mechanism: str, *tokens: bytes, version: int = 2) -> bytes:
    """A handshake, and tokens in requests of this version; version 0: a handshake of version 0, and bare tokens. The last answer."""
    answer = b""
    for body in (handshake(mechanism, 1, min(version, 1)), *(token(item, 2, version) if version else item for item in tokens)):
        answer = ask(sock, body)
    return answer


def scram(sock: socket.socket, mechanism: str, user: str, password: str, version: int = 2) -> bytes:
    """A whole exchange; the last answer."""
    client = ScramClient(mechanism, user, "c")
    first = client.begin()
    assert isinstance(first, Reply)
    answer = exchange(sock, mechanism, first.token, version=version)
    found = re.search(rb"r=[^,]+,s=[^,]+,i=\d+", answer)
    assert found is not None
    step = client.evaluate(found[0])
    assert isinstance(step, Ask)
    assert isinstance(step.auth_request, WantScramKeys)
    last = client.resume(keys_of(mechanism, password, step.auth_request.salt, step.auth_request.iterations))
    assert isinstance(last, Reply)
    return ask(sock, token(last.token, 3, version))
