"""The programs of a Kubernetes node, built once from their published Go modules into a cache outside of the checkout.

About seven minutes on two cores, and 8 GB while it builds; 0.8 GB stay. Debian's packages bring the rest: etcd, runc, the CNI plugins, iptables.
Each version of Kubernetes has a folder of its own; programs that are no part of Kubernetes, and the images, are in that of the newest.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.fakes.deploying import module

KUBERNETES: Final = {"1.29": "1.29.15", "1.33": "1.33.4", "1.36": "1.36.3"}
"""The versions that can be run; sidecars are on by default from the first on."""
OLDEST, *_, NEWEST = KUBERNETES
VERSION: Final = "FRAMEGATE_KUBERNETES"  # the variable with one of them; without it the newest is run
CONTAINERD: Final = "2.4.2"
KUSTOMIZE: Final = "5.8.1"
HELM: Final = "3.22.0"
COREDNS: Final = "1.15.0"
_COMMANDS: Final = ("kube-apiserver", "kubectl", "kube-controller-manager", "kubelet", "kube-scheduler", "kube-proxy")
_INSTALLED: Final = {
    f"github.com/containerd/containerd/v2/cmd/{{}}@v{CONTAINERD}": ("containerd", "containerd-shim-runc-v2", "ctr"),
    f"sigs.k8s.io/kustomize/{{}}/v5@v{KUSTOMIZE}": ("kustomize",),
    f"github.com/coredns/{{}}@v{COREDNS}": ("coredns",),
    f"helm.sh/helm/v3/cmd/{{}}@v{HELM}": ("helm",),
}
_TYPES: Final = {
    "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1": ("pkg/apis/monitoring", "v0.95.2"),
    "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1": ("cert-manager/cert-manager", "v1.21.2"),
    "sigs.k8s.io/controller-tools/cmd/controller-gen": ("controller-tools", "v0.23.0"),
}  # Packages with types of custom resources, of which the last one writes their definitions; the end of each module's path, and its version
_PAUSE: Final = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// Keeps a pod's namespaces: it waits for a signal to end.
func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
"""
_PROGRAMS: Final = {
    "runc": "runc",
    "iptables": "iptables",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "unshare": "util-linux",
    "openssl": "openssl",
    "buildah": "buildah",
}  # Debian's packages by the program that each brings; the CNI plugins and etcd are found by their files
_CNI: Final = Path("/usr/lib/cni/ptp")
_programs: Final = module("programs")
BuildError: Final = _programs.ProgramError  # a program could not be built; the message says which, and has the last lines of the compiler


def _version() -> str:
    return os.environ.get(VERSION, NEWEST)


def cache_directory(version: str = NEWEST) -> Path:
    """``$XDG_CACHE_HOME/framegate/cluster-<versions>``, by default below ``~/.cache``."""
    found: Path = _programs.cache_directory(f"cluster-{KUBERNETES[version]}-{CONTAINERD}-{COREDNS}")
    return found


def binaries() -> Path:
    """The folder of what ``build`` makes for the version that is run."""
    return cache_directory(_version()) / "bin"


def _unbuilt() -> list[str]:
    others = [*(name for names in _INSTALLED.values() for name in names), "pause", "definitions"]
    return [name for name in (*_COMMANDS, *others) if not os.path.exists(binaries() / name)]


def _absent_packages() -> list[str]:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    absent = [package for program, package in _PROGRAMS.items() if shutil.which(program, path=path) is None]
    return absent if _CNI.exists() else [*absent, "containernetworking-plugins"]


def install_packages() -> None:
    """Install the missing packages of Debian, as root; ``missing`` reports what is still missing."""
    absent = _absent_packages()
    if not absent or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print("cluster: installing " + " ".join(absent), file=sys.stderr, flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")  # runlevel 1: a server that is installed is not started
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "--no-install-recommends", *absent]):
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def missing() -> list[str]:
    """The reasons why no node can be started here, for people."""
    if sys.platform != "linux":
        return ["a Linux kernel"]
    reasons = []
    if os.geteuid() != 0:
        reasons.append("root, which makes namespaces and groups of processes")
    absent = _absent_packages()
    if absent:
        reasons.append(f"Debian's packages {' '.join(absent)}")
    if _unbuilt() and _programs.go() is None:
        reasons.append("Go {}.{} or newer, which builds {}".format(*_programs.OLDEST_GO, ", ".join(_unbuilt())))
    if os.geteuid() == 0:
        tried = subprocess.run(["unshare", "-m", "-n", "-p", "-f", "--mount-proc", "true"], stderr=subprocess.PIPE, text=True, check=False)
        if tried.returncode:
            reasons.append(f"namespaces ({tried.stderr.strip()})")
        if not os.path.isdir("/sys/fs/cgroup") or not os.access("/sys/fs/cgroup", os.W_OK):
            reasons.append("control groups that can be written")
    return reasons


def build() -> Path:
    """Build what is not in the cache yet, in one process at a time. Returns: The folder of the binaries. Raises BuildError: Go or its modules failed;
    the log is ``build.log`` in the cache.
    """
    if _unbuilt():
        for version in {NEWEST, _version()}:
            workshop = _programs.Workshop(cache_directory(version))
            with workshop.alone():
                builder = _Builder(workshop)
                if version == _version():
                    builder.kubernetes(KUBERNETES[version])
                if version == NEWEST:
                    builder.installed()
                    builder.pause()
                    builder.definitions()
                workshop.forget("go", "gocache")  # modules and intermediate results are 8 GB, and not needed again
        for name in _unbuilt():
            os.symlink(cache_directory() / "bin" / name, binaries() / name)
    return binaries()


class _Builder:
    def __init__(self, workshop: "_programs.Workshop") -> None:
        self._cache = workshop.folder
        self._bin = workshop.bin
        self._go = workshop.go

    def kubernetes(self, version: str) -> None:
        """Build all of Kubernetes' commands from a module of ours: its own go.mod replaces its parts by folders, which ``go install`` refuses."""
        wanted = [name for name in _COMMANDS if not (self._bin / name).exists()]
        if not wanted:
            return
        folder = self._cache / "kubernetes"
        folder.mkdir(exist_ok=True)
        described = json.loads(self._go(["mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], "reading Kubernetes' module"))
        parts = re.findall(r"^\s*(\S+) => \./staging", Path(described["GoMod"]).read_text(), re.MULTILINE)
        replaced = "".join(f"replace {part} => {part} v0.{version.partition('.')[2]}\n" for part in parts)
        (folder / "go.mod").write_text(f"module framegate/cluster\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v{version}\n\n{replaced}")
        imports = "".join(f'import _ "k8s.io/kubernetes/cmd/{name}"\n' for name in _COMMANDS)
        (folder / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{imports}")
        self._go(["mod", "tidy"], "fetching Kubernetes' modules", folder)
        major, minor, _ = version.split(".")
        stamp = "k8s.io/component-base/version"
        flags = f"-s -w -X {stamp}.gitVersion=v{version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
        for name in wanted:
            target = ["-trimpath", "-ldflags", flags, "-o", str(self._bin / name), f"k8s.io/kubernetes/cmd/{name}"]
            self._go(["build", *target], f"building {name}", folder)

    def installed(self) -> None:
        for source, names in _INSTALLED.items():
            for name in names:
                if not (self._bin / name).exists():
                    self._go(["install", "-trimpath", "-ldflags", "-s -w", source.format(name)], f"building {name}")

    def pause(self) -> None:
        folder = self._cache / "pause"
        folder.mkdir(exist_ok=True)
        (folder / "go.mod").write_text("module framegate/pause\n\ngo 1.26.0\n")
        (folder / "main.go").write_text(_PAUSE)
        self._go(["build", "-trimpath", "-ldflags", "-s -w", "-o", str(self._bin / "pause"), "."], "building pause", folder)

    def definitions(self) -> None:
        """Write the definitions of PodMonitor, PrometheusRule, Certificate and their siblings, as their projects do, from their types in Go."""
        folder, target = self._cache / "definitions", self._bin / "definitions"
        if target.exists():
            return
        folder.mkdir(exist_ok=True)
        modules = [f"{package.partition(end)[0]}{end} {version}" for package, (end, version) in _TYPES.items()]
        (folder / "go.mod").write_text("module framegate/definitions\n\ngo 1.26.0\n" + "".join(f"\nrequire {module}\n" for module in modules))
        imports = "".join(f'import _ "{package}"\n' for package in _TYPES)
        (folder / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{imports}")
        self._go(["mod", "tidy"], "fetching the types of custom resources", folder)
        *packages, program = _TYPES
        words = [*(f"paths={package}" for package in packages), "crd:maxDescLen=0", f"output:crd:dir={folder / 'made'}"]
        self._go(["run", program, *words], "writing the definitions of custom resources", folder)
        os.rename(folder / "made", target)
