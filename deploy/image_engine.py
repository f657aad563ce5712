"""The container engine, podman: whether this machine has it, and its commands."""

from __future__ import annotations

import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import environment

PROBE_S = 20
MOST = 16384  # open files, and processes, of a container
CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers")
PODMAN = environment.Need("podman", "podman", lambda: shutil.which("podman") is not None, ["podman", "runc"])


@dataclass(frozen=True)
class Order:
    """A build.

    Args:
        target: the stage.
        image: the image's name, with tag.
        arguments: build arguments.
        secrets: files by their names in the build.
        epoch: the time of all files in the image, seconds since 1970.
        fresh: no cached steps are used.
    """

    target: str
    image: str
    arguments: dict[str, str]
    secrets: dict[str, Path]
    epoch: int
    fresh: bool = False


class Engine:
    """podman, which builds images and runs them; if there is none, it is installed as root."""

    def __init__(self) -> None:
        environment.provide([(PODMAN, False)])

    def build_command(self, order: Order, containerfile: Path, context: Path) -> list[str]:
        """The command that builds an image."""
        # The isolation chroot works also for a root with few rights, as in a container; the build steps are trusted.
        words = ["podman", "build", "--layers", "--isolation", "chroot", "--timestamp", str(order.epoch)]
        words += ["--file", str(containerfile), "--tag", order.image]
        words += ["--target", order.target] if order.target else []
        words += ["--no-cache"] if order.fresh else []
        for name, value in sorted({**order.arguments, "SOURCE_DATE_EPOCH": str(order.epoch)}.items()):
            words += ["--build-arg", f"{name}={value}"]
        for name, path in sorted(order.secrets.items()):
            words += ["--secret", f"id={name},src={path}"]
        return [*words, str(context)]

    def save_command(self, image: str, archive: Path) -> list[str]:
        """The command that writes an image into an archive in OCI's layout."""
        return ["podman", "save", "--quiet", "--format", "oci-archive", "--output", str(archive), image]

    def pull_command(self, image: str) -> list[str]:
        """The command that fetches an image from its registry."""
        return ["podman", "pull", "--quiet", image]

    def has(self, image: str) -> bool:
        """Whether the engine has an image."""
        return bool(self.image_id(image))

    def image_id(self, image: str) -> str:
        """The id of an image: the digest of its configuration, which has the digests of the layers. Empty: there is no such image."""
        words = ["podman", "image", "inspect", "--format", "{{.Id}}", image]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=PROBE_S, check=False
        )
        return done.stdout.strip().removeprefix("sha256:") if done.returncode == 0 else ""

    def remove(self, image: str) -> None:
        """Remove a name, and the image if it has no other name."""
        none = subprocess.DEVNULL
        subprocess.run(["podman", "rmi", image], stdin=none, stdout=none, stderr=none, timeout=60, check=False)

    def run_command(self, image: str, *options: str, words: tuple[str, ...] = ()) -> list[str]:
        """The command that runs a container with the limits of Kubernetes' ``restricted`` and a read-only root."""
        strict = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
        return [*self.command("run"), *strict, *self._limits(), *options, image, *words]

    def command(self, *words: str) -> list[str]:
        """Another command about containers."""
        # crun does not support control groups v1, and there may be no systemd; runc works in both cases.
        return ["podman", *([] if CGROUP_V2.exists() else ["--runtime", "runc", "--cgroup-manager", "cgroupfs"]), *words]

    def _limits(self) -> list[str]:
        # podman would raise both to its defaults, which fails for a root with few rights; the runtime may have lower limits than this process, too.
        found = []
        for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            soft, hard = (MOST if limit == resource.RLIM_INFINITY else min(limit, MOST) for limit in resource.getrlimit(kind))
            found += ["--ulimit", f"{name}={soft}:{hard}"]
        return found
