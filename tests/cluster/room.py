"""A namespace of the cluster for one test: its objects are applied, read, awaited and removed."""

import base64
import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.components import binaries
from tests.cluster.node import ApiServer, ClusterError, wait_until


def moment(row: dict[str, str]) -> float:
    """A row's time, in seconds since 1970."""
    return datetime.datetime.fromisoformat(row["time"]).timestamp()


class Room:
    """One namespace.

    Args:
        node: of the cluster, or its API server.
        name: of the namespace.
        folder: for files of the test.
    """

    def __init__(self, node: ApiServer, name: str, folder: Path) -> None:
        self.node = node
        self.name = name
        self.folder = folder
        self._volumes: list[str] = []

    def create(self) -> None:
        """Create it. It refuses pods that do not meet the restricted standard."""
        self.folder.mkdir(parents=True)
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        self.node.kubectl(
            "apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}})
        )
        wait_until(lambda: self.kubectl("get", "serviceaccount", "default", check=False), f"the service account of {self.name}")

    def remove(self) -> None:
        """Remove it, wait until its pods have gone, and remove its volumes."""
        self.node.kubectl("delete", "namespace", self.name, "--wait=false", check=False)
        wait_until(lambda: not self.node.kubectl("get", "namespace", self.name, "--ignore-not-found", check=False), f"the end of {self.name}", 120.0)
        for volume in self._volumes:
            self.node.kubectl("delete", "persistentvolume", volume, check=False)

    def kubectl(self, *words: str, given: str | None = None, timeout_s: float = 60.0, check: bool = True) -> str:
        """``kubectl`` in this namespace: its standard output."""
        return self.node.kubectl("--namespace", self.name, *words, given=given, timeout_s=timeout_s, check=check)

    def kubectl_command(self, *words: str) -> list[str]:
        """The command of ``kubectl`` in this namespace, for one that goes on running."""
        return [str(binaries() / "kubectl"), f"--kubeconfig={self.node.config}", "--namespace", self.name, *words]

    def get(self, *words: str) -> Any:
        """The output of ``kubectl get … -o json`` in this namespace."""
        return self.node.get("--namespace", self.name, *words)

    def apply(self, *documents: dict[str, Any]) -> str:
        """Apply documents; a warning of pod security is an error, too."""
        return self.apply_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))

    def apply_text(self, text: str, *words: str) -> str:
        """Apply YAML, with strict validation."""
        done = self.command("kubectl", "--namespace", self.name, "apply", "--validate=strict", "-f", "-", *words, given=text)
        if "would violate" in done.stderr:
            raise ClusterError(done.stderr)
        if done.returncode:
            raise ClusterError(f"kubectl apply: {done.stderr}")
        return done.stdout

    def command(self, *words: str, given: str | None = None, timeout_s: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """Run a program as a user of the cluster does: kubectl and kustomize are on its path, and know the cluster."""
        environment = dict(os.environ, KUBECONFIG=str(self.node.config), PATH=os.pathsep.join((str(binaries()), os.environ["PATH"])))
        return subprocess.run(words, input=given, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment, cwd=self.folder)

    def secret(self, name: str, **files: bytes) -> None:
        """Make or replace a secret: its keys are the files' names with ``_`` for a dot."""
        data = {key.replace("_", "."): base64.b64encode(content).decode() for key, content in files.items()}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})

    def claim(self, name: str, size: str = "2Gi") -> Path:
        """Create a claim and its volume; the volume's folder."""
        folder = self.volume(name)
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        self.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim})
        return folder

    def volume(self, name: str, owner: int = 10001) -> Path:
        """Create a volume for a claim, as a provisioner would; its folder on this machine."""
        folder = self.folder / f"volume-{name}"
        folder.mkdir()
        os.chown(folder, owner, owner)
        full = f"{self.name}-{name}"
        spec = {"capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(folder)},
                "claimRef": {"namespace": self.name, "name": name}}  # fmt: skip
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": full}, "spec": spec}
        self.node.kubectl("apply", "-f", "-", given=json.dumps(volume))
        self._volumes.append(full)
        return folder

    def pod(self, label: str) -> str:
        """The name of the newest pod with a label that is not ending, as ``app=kafka``; empty when there is none."""
        pods = [pod for pod in self.get("pods", "-l", label)["items"] if "deletionTimestamp" not in pod["metadata"]]
        return max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])["metadata"]["name"] if pods else ""

    def wait_ready(self, label: str, timeout_s: float = 90.0) -> str:
        """Wait until the newest pod with a label is ready; its name."""

        def ready() -> str:
            name = self.pod(label)
            if not name:
                return ""
            conditions = self.get("pod", name)["status"].get("conditions", [])
            return name if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions) else ""

        try:
            return str(wait_until(ready, f"a ready pod of {label}", timeout_s, 0.2))
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.story()}") from error

    def wait_job(self, name: str, timeout_s: float = 300.0) -> str:
        """Wait until a Job has completed; the log of its container ``main``."""

        def ended() -> str:
            conditions = self.get("job", name)["status"].get("conditions", [])
            return next((item["type"] for item in conditions if item["status"] == "True" and item["type"] in ("Complete", "Failed")), "")

        end = wait_until(ended, f"the end of the job {name}", timeout_s, 0.3)
        log = self.kubectl("logs", f"job/{name}", "-c", "main", check=False)
        if end != "Complete":
            raise ClusterError(f"the job {name} failed:\n{log}\n{self.story()}")
        return log

    def rows(self, pod: str, *, previous: bool = False, container: str = "framegate") -> list[dict[str, Any]]:
        """framegate's rows of a pod."""
        log = self.kubectl("logs", pod, "-c", container, *(["--previous"] if previous else []), check=False)
        return [json.loads(line) for line in log.splitlines() if line.startswith("{")]

    def framegate(self, pod: str, *words: str, check: bool = True) -> str:
        """framegate's command line within the sidecar of a pod."""
        return self.kubectl("exec", pod, "-c", "framegate", "--", "/opt/framegate/bin/framegate", *words, check=check)

    def address(self, pod: str) -> str:
        return str(self.get("pod", pod)["status"]["podIP"])

    def sidecar(self, pod: str) -> dict[str, Any]:
        """The status of framegate's container in a pod."""
        statuses = self.get("pod", pod)["status"].get("initContainerStatuses", [])
        (status,) = [item for item in statuses if item["name"] == "framegate"]
        return dict(status)

    def story(self) -> str:
        """Pods, events and last rows, for the report of a failure."""
        parts = [
            self.kubectl("get", "pods", "-o", "wide", check=False),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-4000:],
        ]
        for pod in self.get("pods")["items"]:
            name = pod["metadata"]["name"]
            for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
                said = self.kubectl("logs", name, "-c", container["name"], "--tail=15", check=False)
                parts.append(f"--- {name}/{container['name']}\n{said}")
        return "\n".join(parts)
