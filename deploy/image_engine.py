"""The container engines: which of them this machine has, and their commands. buildah and podman share their images; Docker has its own."""

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


def docker_answers() -> bool:
    """Whether there is Docker with a daemon that answers."""
    return shutil.which("docker") is not None and succeeds(["docker", "version", "--format", "{{.Server.Version}}"])


def succeeds(command: list[str], seconds: float = PROBE_S) -> bool:
    """Whether a short command succeeds in time."""
    try:
        return (
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False


def builder() -> str:
    """The engine that builds: buildah, podman or Docker, in this order; empty: there is none."""
    found = next((name for name in ("buildah", "podman") if shutil.which(name)), "")
    return found or ("docker" if docker_answers() else "")


def runner(built_by: str) -> str:
    """The engine that runs images of another one, whose images it must see; empty: there is none."""
    return "docker" if built_by == "docker" else "podman" if shutil.which("podman") else ""


BUILDER = environment.Need(
    "builder",
    "A container engine (buildah, podman, or Docker with its daemon)",
    lambda: bool(builder()),
    ["buildah", "podman", "runc"],
    "there is no image",
)
RUNNER = environment.Need("runner", "podman", lambda: bool(runner("buildah")), ["podman", "runc"], "images are built and not tried")


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


@dataclass(frozen=True)
class Engine:
    """An engine that builds, and one that runs its images (empty: none)."""

    build: str
    run: str

    def build_command(self, order: Order, containerfile: Path, context: Path) -> list[str]:
        """The command that builds an image."""
        words = {
            # The isolation chroot works also for a root with few rights, as in a container; the build steps are trusted.
            "buildah": ["buildah", "bud", "--layers", "--isolation", "chroot", "--timestamp", str(order.epoch)],
            "podman": ["podman", "build", "--layers", "--isolation", "chroot", "--timestamp", str(order.epoch)],
            "docker": ["docker", "buildx", "build", "--load", "--provenance=false"],
        }[self.build]
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
        return {
            "buildah": ["buildah", "push", "--quiet", image, f"oci-archive:{archive}:{image}"],
            "podman": ["podman", "save", "--quiet", "--format", "oci-archive", "--output", str(archive), image],
            "docker": ["docker", "image", "save", "--output", str(archive), image],
        }[self.build]

    def pull_command(self, image: str) -> list[str]:
        """The command that fetches an image from its registry."""
        return [self.build, "pull", "--quiet", image]

    def has(self, image: str) -> bool:
        """Whether the engine has an image."""
        return bool(self.image_id(image))

    def image_id(self, image: str) -> str:
        """The id of an image: the digest of its configuration, which has the digests of the layers. Empty: there is no such image."""
        words = {
            "buildah": ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", image],
            "podman": ["podman", "image", "inspect", "--format", "{{.Id}}", image],
            "docker": ["docker", "image", "inspect", "--format", "{{.Id}}", image],
        }[self.build]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=PROBE_S, check=False
        )
        return done.stdout.strip().removeprefix("sha256:") if done.returncode == 0 else ""

    def remove(self, image: str) -> None:
        """Remove a name, and the image if it has no other name."""
        succeeds([self.build, "rmi", image], 60)

    def run_command(self, image: str, *options: str, words: tuple[str, ...] = ()) -> list[str]:
        """The command that runs a container with the limits of Kubernetes' ``restricted`` and a read-only root."""
        strict = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
        return [*self._runner(), "run", *strict, *self._limits(), *options, image, *words]

    def command(self, *words: str) -> list[str]:
        """Another command of the engine that runs containers."""
        return [*self._runner(), *words]

    def tmpfs(self, path: str, user: int) -> list[str]:
        """The options that mount a tmpfs over a folder, owned by the user."""
        # podman has its own option for the owner, and mounts a tmpfs over /run and /tmp by default.
        if self.run == "docker":
            return ["--tmpfs", f"{path}:mode=0700,uid={user},gid={user}"]
        return ["--read-only-tmpfs=false", "--tmpfs", f"{path}:mode=0700,U"]

    def _runner(self) -> list[str]:
        # crun does not support control groups v1, and there may be no systemd; runc works in both cases.
        if self.run == "podman" and not CGROUP_V2.exists():
            return ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
        return [self.run]

    def _limits(self) -> list[str]:
        # podman would raise both to its defaults, which fails for a root with few rights; the runtime may have lower limits than this process, too.
        found = []
        for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            soft, hard = (MOST if limit == resource.RLIM_INFINITY else min(limit, MOST) for limit in resource.getrlimit(kind))
            found += ["--ulimit", f"{name}={soft}:{hard}"]
        return found


def choose(*, trial: bool) -> Engine:
    """The engine to use; if there is none, it is installed as root.

    Args:
        trial: whether containers will be run.
    """
    environment.provide([(BUILDER, False)])
    name = builder()
    if trial and name != "docker":
        environment.provide([(RUNNER, True)])
    return Engine(name, runner(name) if trial else "")
