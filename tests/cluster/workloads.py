"""The pods of the tests: a Kafka broker that listens within its pod only, and its clients. framegate is added to them in both of the ways that users
have: the Kustomize component, and ``framegate inject``.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from tests.cluster.images import FRAMEGATE, KAFKA
from tests.cluster.node import ClusterError
from tests.cluster.room import Room
from tests.fakes.certificates import Authority

KUSTOMIZE: Final = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"
_ANSWERS: Final = "import socket; socket.create_connection(('127.0.0.1', 9092), 1).close()"
CONFIGURATION: Final = """\
node: kafka
admin: {address: "unix:/run/framegate/admin.sock"}
health: {address: "0.0.0.0:9901", http_address: "0.0.0.0:9902"}
processors: 0
memory_pool: {size: 0}
listeners:
  - name: kafka
    address: 0.0.0.0:9093
    protocol: kafka
    max_receive_size: 16MiB
    tls: {certificate: /var/run/framegate/tls/tls.crt, key: /var/run/framegate/tls/tls.key}
    upstream: broker
upstreams:
  - {name: broker, endpoints: ["127.0.0.1:9092"]}
tap:
  directory: /var/lib/framegate/tap
  budget: 1GiB
  rules: [{name: all, capture: full}]
telemetry: {prometheus: {address: "0.0.0.0:9464"}}
drain: {delay: 2s, timeout: 6s}
rotation: {poll: 250ms}
"""  # in front of the broker: TLS ends here, and everything is recorded
OUTBOUND: Final = """\
node: client
admin: {address: "unix:/run/framegate/admin.sock"}
health: {address: "0.0.0.0:9901", http_address: "0.0.0.0:9902"}
processors: 1
memory_pool: {size: 0}
listeners:
  - name: broker
    address: 127.0.0.1:9093
    protocol: kafka
    max_receive_size: 16MiB
    upstream: broker
upstreams:
  - name: broker
    endpoints: ["kafka.NAMESPACE.svc.cluster.local:9093"]
    tls: {ca: /var/run/framegate/tls/ca.crt, server_name: kafka}
drain: {timeout: 20s}
"""  # behind a client: it speaks to its own pod in the clear, and framegate speaks TLS to the broker's framegate


def document(kind: str, name: str, spec: dict[str, Any], version: str = "v1", labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels or {"app": name}}, "spec": spec}


def restricted_pod() -> dict[str, Any]:
    """A pod's security context under the restricted standard; without an fsGroup, as most applications are: framegate must do without, too."""
    return {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_container() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


def _container(*words: str, environment: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    variables: list[dict[str, Any]] = [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    variables += [{"name": name, "value": value} for name, value in (environment or {}).items()]
    return {
        "name": "main",
        "image": KAFKA,
        "imagePullPolicy": "Never",
        "args": list(words),
        "env": variables,
        "securityContext": restricted_container(),
        **more,
    }


def broker(advertised: str, claim: str | None = None, brokers: int = 1, **more: Any) -> dict[str, Any]:
    """A StatefulSet of one broker, or of a cluster, each of which listens for clients at 127.0.0.1:9092 and tells them another address.

    Args:
        advertised: host and port that clients are told.
        claim: of its data; without, they end with the pod.
        brokers: their number; more than one need a headless Service, and volumes of claims ``data``.
        more: of the pod.
    """
    container = _container(
        "/kafka/broker.py",
        environment={"ADVERTISED": advertised, "DATA": "/data", "BROKERS": str(brokers)},
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
        resources={"requests": {"cpu": "200m", "memory": "400Mi"}},
        readinessProbe={"exec": {"command": ["/opt/framegate/bin/python", "-c", _ANSWERS]}, "periodSeconds": 1},
    )
    volume = {"name": "data", **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}})}
    pod: dict[str, Any] = {"securityContext": restricted_pod(), "containers": [container], "volumes": [volume], **more}
    template = {"metadata": {"labels": {"app": "kafka"}}, "spec": pod}
    labels = {"app": "kafka", "framegate.io/inject": "true"}
    many: dict[str, Any] = {}
    if brokers > 1:
        del pod["volumes"]
        data = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        many["podManagementPolicy"] = "Parallel"  # a broker is ready when most of them are there
        many["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": data}]
    spec = {"serviceName": "kafka", "replicas": brokers, **many, "selector": {"matchLabels": {"app": "kafka"}}, "template": template}
    return document("StatefulSet", "kafka", spec, "apps/v1", labels)


def service(name: str = "kafka", port: int = 9093, target: int = 9093, **more: Any) -> dict[str, Any]:
    """A Service whose port leads to framegate's; ``more``: of its specification."""
    return document("Service", name, {"selector": {"app": name}, "ports": [{"name": "data", "port": port, "targetPort": target}], **more})


def client_pod(*words: str, secret: str | None = "framegate-tls", claims: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """The specification of a client's pod.

    Args:
        words: of the client's program.
        secret: whose ``ca.crt`` it finds in ``/tls``; None for none.
        claims: folders, and the claims that are there.
        more: of the pod.
    """
    volumes: list[dict[str, Any]] = [{"name": "tls", "secret": {"secretName": secret}}] if secret else []
    mounts = [{"name": "tls", "mountPath": "/tls", "readOnly": True}] if secret else []
    for path, claim in (claims or {}).items():
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": claim, "mountPath": path})
    container = _container("/kafka/client.py", *words, volumeMounts=mounts)
    return {"restartPolicy": "Never", "securityContext": restricted_pod(), "containers": [container], "volumes": volumes, **more}


def client_job(name: str, *words: str, **more: Any) -> dict[str, Any]:
    """A Job that runs a client to its end; ``more`` as of ``client_pod``."""
    template = {"metadata": {"labels": {"app": name}}, "spec": client_pod(*words, **more)}
    return document("Job", name, {"backoffLimit": 0, "template": template}, "batch/v1")


def last_line(log: str) -> dict[str, Any]:
    """What a client's program said at its end."""
    line = [line for line in log.splitlines() if line.startswith("{")][-1]
    said: dict[str, Any] = json.loads(line)
    return said


def certificates(room: Room, name: str = "framegate-tls") -> Authority:
    """A new authority, and a Secret with a certificate of it for ``kafka``, its key, and the authority's own certificate."""
    authority = Authority(room.folder)
    give_certificate(room, authority, name)
    return authority


def give_certificate(room: Room, authority: Authority, name: str = "framegate-tls") -> bytes:
    """Put a new certificate into the Secret, as a renewal does; the certificate."""
    hosts = (
        "kafka",
        *(f"kafka-{number}.kafka" for number in range(3)),
        f"kafka.{room.name}.svc",
        f"kafka.{room.name}.svc.cluster.local",
        "localhost",
    )
    certificate, key = authority.leaf_pem("kafka", hosts=hosts)
    room.secret(name, tls_crt=certificate, tls_key=key, ca_crt=authority.path.read_bytes())
    return certificate


def component(room: Room, configuration: str, *documents: dict[str, Any], options: tuple[str, ...] = ()) -> str:
    """Apply documents with the Kustomize component, as ``kubectl apply -k`` does; options are further components. Returns: What kubectl said."""
    folder = room.folder / "overlay"
    folder.mkdir(exist_ok=True)
    for number, item in enumerate(documents):
        (folder / f"{number}.yaml").write_text(json.dumps(item))
    (folder / "framegate.yaml").write_text(configuration)
    paths = [KUSTOMIZE / "framegate", *(KUSTOMIZE / "options" / name for name in options)]
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": room.name,
        "resources": [f"{number}.yaml" for number in range(len(documents))],
        "components": [os.path.relpath(path, folder) for path in paths],
        "configMapGenerator": [{"name": "framegate", "files": ["framegate.yaml"]}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(overlay))
    done = room.command("kubectl", "apply", "--validate=strict", "-k", str(folder))
    if done.returncode or "would violate" in done.stderr:
        raise ClusterError(f"kubectl apply -k: {done.stderr}")
    return done.stdout


def injected(room: Room, configuration: str, *documents: dict[str, Any], options: tuple[str, ...] = ()) -> str:
    """What ``framegate inject`` makes of documents."""
    path = room.folder / "framegate.yaml"
    path.write_text(configuration)
    given = "\n---\n".join(json.dumps(document) for document in documents)
    done = room.command("framegate", "inject", "-f", "-", "--config", str(path), "--image", FRAMEGATE, *options, given=given)
    if done.returncode:
        raise ClusterError(f"framegate inject: exit {done.returncode}: {done.stderr}")
    return done.stdout
