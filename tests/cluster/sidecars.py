"""framegate is added to a workload, in both of the ways that users have: the Kustomize component, and ``framegate inject``."""

import json
import os
from pathlib import Path
from typing import Any, Final

from tests.cluster.images import FRAMEGATE
from tests.cluster.node import ClusterError
from tests.cluster.room import Room
from tests.fakes.certificates import Authority

__all__ = ["certificates", "component", "give_certificate", "injected"]

KUSTOMIZE: Final = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"


def certificates(room: Room, name: str = "framegate-tls") -> Authority:
    """A new authority, and a Secret with a certificate of it for ``kafka``, its key, and the authority's own certificate."""
    authority = Authority(room.folder)
    give_certificate(room, authority, name)
    return authority


def give_certificate(room: Room, authority: Authority, name: str = "framegate-tls") -> bytes:
    """Put a new certificate into the Secret, as a renewal does; the certificate."""
    hosts = ("kafka", f"kafka.{room.name}.svc", f"kafka.{room.name}.svc.cluster.local", "localhost")
    certificate, key = authority.leaf_pem("kafka", hosts=hosts)
    room.secret(name, tls_crt=certificate, tls_key=key, ca_crt=authority.path.read_bytes())
    return certificate


def component(room: Room, configuration: str, *documents: dict[str, Any], options: tuple[str, ...] = ()) -> str:
    """Apply documents with the Kustomize component, as ``kubectl apply -k`` does; options are further components.

    Returns:
        What kubectl said.
    """
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
