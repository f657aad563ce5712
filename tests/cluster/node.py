"""One Kubernetes node with everything of a cluster: API server, controllers, scheduler, kubelet, containerd, kube-proxy, CoreDNS.

It is started within namespaces of its own, which ``machine`` makes; all its processes end with them.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cluster.components import OLDEST, VERSION, binaries
from tests.cluster.machine import groups
from tests.fakes.certificates import Authority

NODE: Final = "node0"
NODE_ADDRESS: Final = "10.78.0.1"
POD_SUBNET: Final = "10.77.0.0/24"
SERVICE_SUBNET: Final = "10.79.0.0/24"
DNS_ADDRESS: Final = NODE_ADDRESS
_ETCD: Final = "http://127.0.0.1:23790"
_START_S: Final = 60.0
_END_S: Final = 20.0


class ClusterError(Exception):
    """A command or a server failed; the message has its output."""


def wait_until(ready: Callable[[], Any], what: str, timeout_s: float = _START_S, every_s: float = 0.1, why: Callable[[], str] = str) -> Any:
    """Wait until ``ready`` returns something true, and return it. Raises ClusterError: not in time; ``why`` adds to its text."""
    deadline = time.monotonic() + timeout_s
    while not (answer := ready()):
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout_s:g} s {why()}")
        time.sleep(every_s)
    return answer


def _run(words: Sequence[str], *, given: str | None = None, timeout_s: float = _START_S, check: bool = True, cwd: Path | None = None) -> str:
    """A command's standard output."""
    try:
        done = subprocess.run(list(words), input=given, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(words)[:200]}: not done within {timeout_s:g} s") from error
    if check and done.returncode:
        raise ClusterError(f"{' '.join(words)[:200]}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


class ApiServer:
    """etcd, kube-apiserver and the controllers: enough to check manifests, without a node. ``folder``: for data, certificates and logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = binaries()
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self.config = folder / "admin.conf"

    def start(self) -> None:
        """Start everything and wait until it answers. Raises ClusterError."""
        _run(["ip", "link", "set", "lo", "up"])
        _run(["ip", "link", "add", NODE, "type", "bridge"])  # an interface that needs no other: a node's address may not be a loopback one
        _run(["ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", NODE])
        _run(["ip", "link", "set", NODE, "up"])
        _run(["ip", "route", "add", "default", "dev", NODE])  # kube-proxy asks for the address of the default route
        for kept in ("/run", "/var/lib/cni"):  # what runtimes keep there ends with this namespace
            os.makedirs(kept, exist_ok=True)
            _run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", kept])
        self.folder.mkdir(parents=True, exist_ok=True)
        self._certificates()
        self.server("etcd", "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", _ETCD, "--advertise-client-urls", _ETCD,
                    "--listen-peer-urls", "http://127.0.0.1:23800", "--initial-advertise-peer-urls", "http://127.0.0.1:23800",
                    "--initial-cluster", "default=http://127.0.0.1:23800", "--unsafe-no-fsync")  # fmt: skip
        self.start_api_server()
        common = [f"--kubeconfig={self.config}", "--leader-elect=false", "--bind-address=127.0.0.1"]
        account = [f"--service-account-private-key-file={self.folder / 'sa.key'}", f"--root-ca-file={self.folder / 'cluster.crt'}"]
        self.server("controllers", "kube-controller-manager", *common, *account, "--use-service-account-credentials=true",
                    "--node-monitor-grace-period=30s")  # fmt: skip
        self.server("scheduler", "kube-scheduler", *common)
        wait_until(lambda: self.kubectl("get", "serviceaccount", "default", check=False), "the default service account")

    def start_api_server(self) -> None:
        """Start kube-apiserver alone, and wait until it answers."""
        path = self.folder
        gates = ",".join(f"{name}=true" for name in feature_gates())
        self.server("api", "kube-apiserver", *([f"--feature-gates={gates}"] if gates else []),
                     f"--etcd-servers={_ETCD}", "--bind-address=0.0.0.0", f"--advertise-address={NODE_ADDRESS}",
                    "--secure-port=26443", f"--tls-cert-file={path / 'api.crt'}", f"--tls-private-key-file={path / 'api.key'}",
                    f"--client-ca-file={path / 'cluster.crt'}", f"--service-account-key-file={path / 'sa.key'}",
                    f"--service-account-signing-key-file={path / 'sa.key'}", "--service-account-issuer=https://kubernetes.default",
                    f"--service-cluster-ip-range={SERVICE_SUBNET}", "--authorization-mode=RBAC", "--allow-privileged=true",
                    "--kubelet-preferred-address-types=InternalIP",
                    f"--kubelet-client-certificate={path / 'admin.crt'}", f"--kubelet-client-key={path / 'admin.key'}")  # fmt: skip
        wait_until(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", "the API server", why=lambda: self.log("api"))

    def send_signal(self, name: str, number: int) -> None:
        self._servers[name].send_signal(number)

    def stop_server(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one server and wait for its end."""
        process = self._servers.pop(name)
        process.send_signal(number)
        process.wait(_END_S)

    def server(self, name: str, program: str, *words: str) -> None:
        """Start a server; its output is in ``NAME.log``."""
        path = self._bin / program
        environment = dict(os.environ, PATH=os.pathsep.join((str(self._bin), os.environ["PATH"], "/usr/sbin", "/sbin")))
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [str(path) if path.exists() else program, *words]
            process = subprocess.Popen(  # in a session of its own: Ctrl-C is for pytest, which ends it
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True
            )
        self._servers[name] = process

    def log(self, name: str) -> str:
        """The last lines of a server's log."""
        path = self.folder / f"{name}.log"
        return " | ".join(path.read_text(errors="replace").splitlines()[-3:]) if path.exists() else ""

    def kubectl(self, *words: str, given: str | None = None, timeout_s: float = _START_S, check: bool = True) -> str:
        """``kubectl`` as the cluster's administrator: its standard output.

        Args:
            words: behind ``kubectl``.
            given: its standard input.
            timeout_s: the most that it may take.
            check: raise an error if it fails; otherwise its output is returned.
        """
        return _run([str(self._bin / "kubectl"), f"--kubeconfig={self.config}", *words], given=given, timeout_s=timeout_s, check=check)

    def version(self) -> str:
        """The API server's, as v1.36.3."""
        return str(json.loads(self.kubectl("get", "--raw", "/version"))["gitVersion"])

    def get(self, *words: str) -> Any:
        """What ``kubectl get … -o json`` says."""
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def stop(self) -> None:
        """End every server, the last one first."""
        while self._servers:
            _, process = self._servers.popitem()
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _certificates(self) -> None:
        authority = Authority(self.folder, "cluster")
        authority.leaf("api", hosts=("localhost", "kubernetes.default"), addresses=("127.0.0.1", NODE_ADDRESS, "10.79.0.1"))
        authority.leaf("admin", organization="system:masters")
        _run(["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"])
        cluster = {"certificate-authority": str(self.folder / "cluster.crt"), "server": f"https://{NODE_ADDRESS}:26443"}
        user = {"client-certificate": str(self.folder / "admin.crt"), "client-key": str(self.folder / "admin.key")}
        context = {"cluster": "here", "user": "admin"}
        kinds = {"clusters": ("cluster", cluster), "users": ("user", user), "contexts": ("context", context)}
        names = {"clusters": "here", "users": "admin", "contexts": "here"}
        document: dict[str, Any] = {kind: [{"name": names[kind], word: value}] for kind, (word, value) in kinds.items()}
        self.config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **document}))


def feature_gates() -> tuple[str, ...]:
    """The gates that framegate's pods need and this version has not on: without it a preStop hook's sleep is dropped, and the pod refused."""
    return ("PodLifecycleSleepAction",) if os.environ.get(VERSION) == OLDEST else ()


class Node(ApiServer):
    """The API server, and a node that runs pods. ``folder``: for data, certificates and logs; the name of the folder around it is that of the group
    of all processes of pods.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._group = folder.parent.name

    def start(self) -> None:
        for group in groups(self._group):
            group.mkdir(exist_ok=True)
        super().start()
        self._containerd()
        self._dns()
        self._kubelet()
        wait_until(self._is_ready, "the node", 120.0, why=lambda: self.log("kubelet"))
        self.kubectl("taint", "nodes", NODE, "node.kubernetes.io/not-ready-", check=False)

    def _containerd(self) -> None:
        path, folder = self.folder, self.folder / "cni"
        folder.mkdir()
        ranges = {"type": "host-local", "dataDir": str(path / "cni-data"), "ranges": [[{"subnet": POD_SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}]}
        plugins = [{"type": "ptp", "ipMasq": False, "ipam": ranges}]
        (folder / "10.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}))
        (path / "containerd.toml").write_text(
            f"""\
version = 3
root = "{path / "containerd"}"
state = "{path / "containerd-state"}"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "{path / "containerd.sock"}"
[ttrpc]
  address = "{path / "containerd.ttrpc"}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{folder}"
"""
        )
        self.server("containerd", "containerd", "--config", str(path / "containerd.toml"))
        wait_until(lambda: self.ctr("namespaces", "list", check=False), "containerd", why=lambda: self.log("containerd"))

    def ctr(self, *words: str, check: bool = True) -> str:
        """containerd's own command, in the kubelet's namespace."""
        return _run([str(self._bin / "ctr"), "--address", str(self.folder / "containerd.sock"), "--namespace", "k8s.io", *words], check=check)

    def load(self, archive: Path) -> None:
        """Import an image from an OCI archive."""
        self.ctr("images", "import", "--local", "--no-unpack=false", str(archive))

    def _dns(self) -> None:
        zone = f"""\
.:53 {{
    bind {DNS_ADDRESS}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {self.config} here
    }}
    ready {DNS_ADDRESS}:8181
}}
"""
        (self.folder / "Corefile").write_text(zone)
        self.start_dns()

    def start_dns(self) -> None:
        self.server("coredns", "coredns", "-conf", str(self.folder / "Corefile"))

    def _kubelet(self) -> None:
        path = self.folder
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_ADDRESS,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}, "x509": {"clientCAFile": str(path / "cluster.crt")}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{path / 'containerd.sock'}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._group}",
            "failCgroupV1": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(path / "pod-logs"),
            "volumePluginDir": str(path / "volume-plugins"),
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "2s",
            "configMapAndSecretChangeDetectionStrategy": "Watch",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "serializeImagePulls": False,
            "featureGates": dict.fromkeys(feature_gates(), True),
        }
        (path / "kubelet.yaml").write_text(json.dumps(settings))
        self.start_kubelet()
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self.config)},
            "clusterCIDR": POD_SUBNET,
            "hostnameOverride": NODE,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},  # of the whole machine
        }
        (path / "proxy.yaml").write_text(json.dumps(proxy))
        self.server("kube-proxy", "kube-proxy", "--config", str(path / "proxy.yaml"))

    def start_kubelet(self) -> None:
        """Start the kubelet alone; it finds the existing containers."""
        path = self.folder
        self.server("kubelet", "kubelet", "--config", str(path / "kubelet.yaml"), "--kubeconfig", str(self.config), "--root-dir",
                    str(path / "kubelet"), "--hostname-override", NODE, "--node-ip", NODE_ADDRESS)  # fmt: skip

    def _is_ready(self) -> bool:
        said = self.kubectl("get", "node", NODE, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}", check=False)
        return said == "True"

    def stop(self) -> None:
        with contextlib.suppress(ClusterError):
            self.kubectl("delete", "namespace", "--all", "--wait=false", check=False)
            wait_until(lambda: not self.ctr("tasks", "list", "--quiet", check=False).split(), "the end of all containers", 60.0)
        super().stop()
