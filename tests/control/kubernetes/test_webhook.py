"""The webhook's server: reviews over TLS, and a certificate that is renewed before it ends and trusted before it is served."""

import asyncio
import base64
import datetime
import functools
import json
import os
import signal
import socket
import ssl
import threading
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509

from framegate.control.cli.commands import main
from framegate.control.kubernetes import cluster, webhook
from framegate.control.kubernetes.admission import Admission
from framegate.control.kubernetes.cluster import Cluster, ClusterError
from framegate.control.kubernetes.sidecar import Options
from framegate.control.kubernetes.webhook import OwnCertificate, answer, files, serve
from tests.control.kubernetes.test_admission import CONFIGURATION, POD
from tests.fakes.api_server import FakeApiServer
from tests.fakes.certificates import Authority
from tests.fakes.waiting import until

SECRET = "/api/v1/namespaces/system/secrets/hook"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hook"
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "7", "operation": "CREATE", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "ns", "object": POD},
}


def own(api_server: FakeApiServer) -> OwnCertificate:
    """A replica; the first finds an empty Secret and no authority."""
    api_server.objects.setdefault(SECRET, {"metadata": {"resourceVersion": 1}})
    api_server.objects.setdefault(HOOKS, {"webhooks": [{"clientConfig": {}}, {"clientConfig": {"caBundle": "eA=="}}]})
    return OwnCertificate(Cluster(api_server.account), "hook")


def trusted(api_server: FakeApiServer) -> list[x509.Certificate]:
    (bundle,) = {hook["clientConfig"]["caBundle"] for hook in api_server.objects[HOOKS]["webhooks"]}
    return x509.load_pem_x509_certificates(base64.b64decode(bundle))


def test_the_first_replica_makes_a_certificate_and_the_others_use_it(api_server: FakeApiServer) -> None:
    first = own(api_server)()
    assert own(api_server)() == first
    (authority,) = trusted(api_server)
    certificate = x509.load_pem_x509_certificate(first[0])
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hook.system.svc"]
    api_server.objects[HOOKS]["webhooks"][0]["clientConfig"]["caBundle"] = "eA=="
    own(api_server)()
    assert trusted(api_server) == [authority], "what others change is repaired"


@pytest.mark.parametrize(("left", "renewed"), [(1, True), (-1, False)])
def test_a_certificate_is_renewed_in_the_last_third_of_its_life_and_the_former_authority_stays_trusted(
    api_server: FakeApiServer, tmp_path: Path, left: int, renewed: bool
) -> None:
    hour = datetime.timedelta(hours=1)
    authority = Authority(tmp_path, "before")
    pem, key = authority.leaf_pem("hook", hosts=("hook.system.svc",), lifetime=(-20 * hour, (10 - left) * hour))
    older = b"".join(Authority(tmp_path, f"older {number}").path.read_bytes() for number in range(2))
    held = {"tls.crt": pem, "tls.key": key, "ca.crt": authority.path.read_bytes() + older}
    replica = own(api_server)
    api_server.objects[SECRET]["data"] = {name: base64.b64encode(value).decode() for name, value in held.items()}
    assert (replica() != (pem, key)) is renewed
    names = [each.subject.rfc4514_string() for each in trusted(api_server)]
    assert names == (["CN=framegate webhook authority", "CN=before"] if renewed else ["CN=before", "CN=older 0", "CN=older 1"])


def test_of_two_replicas_that_renew_at_once_the_second_takes_the_firsts(api_server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = own(api_server), own(api_server)
    made, taken = slow._made, []

    def made_late(before: bytes) -> dict[str, bytes]:
        taken.append(quick())
        return made(before)

    monkeypatch.setattr(slow, "_made", made_late)
    with pytest.raises(ClusterError, match="modified") as caught:
        slow()
    assert caught.value.status == 409
    assert slow() == taken[0]


def test_requests_are_told_apart(api_server: FakeApiServer) -> None:
    admission = Admission(Cluster(api_server.account), Options(), CONFIGURATION, admit=False)

    def status(method: str, path: str, body: Any = None) -> int:
        request = f"{method} {path} HTTP/1.1\r\n\r\n".encode() + (body if isinstance(body, bytes) else json.dumps(body).encode())
        return int(answer(admission, request).split()[1])

    assert status("POST", "/inject", REVIEW) == status("POST", "/inject?timeout=10s", REVIEW) == status("GET", "/healthz") == 200
    assert status("GET", "/inject") == status("POST", "/") == status("POST", "/injected", REVIEW) == 404
    old = {**REVIEW, "apiVersion": "admission.k8s.io/v1beta1"}
    for body in (b"", b"\xff", [], {}, old, {**REVIEW, "request": None}, {**REVIEW, "request": {"uid": "7"}}):
        assert status("POST", "/inject", body) == 400


def test_a_configuration_that_no_pod_could_have_ends_it_at_once_with_every_reason(
    api_server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "Cluster", functools.partial(Cluster, api_server.account))
    path = tmp_path / "framegate.yaml"
    cases = {
        CONFIGURATION.replace("upstream: u,", "upstream: v,").replace("25s", "x"): ["line 4: listeners[0].upstream", "line 6: drain.timeout"],
        CONFIGURATION.replace("0.0.0.0:9901", "127.0.0.1:9901"): ["which the kubelet cannot reach"],
        CONFIGURATION.replace("limits:", "tls: {certificate: /a/tls.crt, key: /b/tls.key}, limits:"): ["add --secret NAME=/b"],
        CONFIGURATION + "#" * 200_001: ["more than 200000 bytes"],
    }
    for text, words in cases.items():
        path.write_text(text)
        done = CliRunner().invoke(main, ["webhook", "--name", "a", "--config", str(path)])
        said = done.stderr.splitlines()
        assert (done.exit_code, [word in line for word, line in zip(words, said, strict=True)]) == (2, [True] * len(words)), said


def test_it_serves_reviews_with_the_certificate_of_the_files_until_a_signal(
    api_server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("_POLL_S", 0.05), ("_RETRY_S", 0.02), ("_ENDING_S", 0.01)):
        monkeypatch.setattr(webhook, name, value)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    admission = Admission(Cluster(api_server.account), Options(), CONFIGURATION, admit=False)
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.path)
    certificate, key = tmp_path / "hook.crt", tmp_path / "hook.key"
    served: list[Any] = []

    def serial() -> int:
        with socket.create_connection(("127.0.0.1", port), 5) as plain, context.wrap_socket(plain, server_hostname="localhost") as client:
            return x509.load_der_x509_certificate(client.getpeercert(binary_form=True) or b"").serial_number

    def client() -> None:
        try:
            until(lambda: "the certificate cannot be read" in caplog.text)
            authority.leaf("hook")
            until(lambda: "listening" in caplog.text)
            connection = HTTPSConnection("localhost", port, timeout=10, context=context)
            connection.request("POST", "/inject?timeout=10s", json.dumps(REVIEW), {"Content-Type": "application/json"})
            served.append(json.loads(connection.getresponse().read())["response"])
            connection.close()
            before, good = serial(), key.read_bytes()
            key.write_bytes(authority.leaf_pem("other")[1])
            caplog.clear()
            until(lambda: "the certificate cannot be read" in caplog.text)
            assert serial() == before, "a key that does not belong to the certificate changes nothing"
            key.write_bytes(good)
            authority.leaf("hook")
            until(lambda: serial() != before)
        except BaseException as error:
            served.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=client)
    thread.start()
    with caplog.at_level("INFO"):
        asyncio.run(serve(f"127.0.0.1:{port}", admission, lambda: files(certificate, key)))
    thread.join()
    (response,) = served
    assert not isinstance(response, BaseException), response
    assert (response["uid"], response["patchType"]) == ("7", "JSONPatch")
