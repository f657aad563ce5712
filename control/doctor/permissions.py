"""Rights of this process beyond those that framegate needs; and in a pod, how volumes are mounted, and what cannot be seen from inside."""

import functools
import os
import re
from collections.abc import Iterator
from typing import Final

from framegate.control.configuration.tls_files import named_paths, tls_files
from framegate.control.configuration.units import counted
from framegate.control.doctor.disk import Mount, mount_of, mounts
from framegate.control.doctor.finding import Finding, judged, unknown
from framegate.control.doctor.surroundings import Surroundings

_SECRET: Final = ("key", "password_file", "token_file", "users")  # keys of the configuration that name a file with a secret in it
_BIND_LOW_PORTS: Final = 1 << 10  # CAP_NET_BIND_SERVICE
_ATOMIC: Final = re.compile(r"/\.\.\d{4}_\d\d_\d\d_")
"""The folder to which a kubelet turns the link ``..data``. A mount out of such a folder is never renewed."""
BESIDE_DRAIN_S: Final = 12  # seconds that `framegate inject` asks for beside the drain: preStop, and the tap's last blocks
_judged = functools.partial(judged, "permissions")


def look(around: Surroundings) -> Iterator[Finding]:
    """The user, its rights, the root file system. ``framegate check`` warns about files with secrets and the socket's folder."""
    status = _status(around)
    user = int((status.get("Uid") or str(os.geteuid())).split()[0])
    advice = (
        "run it as a user of its own: it needs no right of root's (Kubernetes: runAsNonRoot; systemd: User=); ports below 1024: CAP_NET_BIND_SERVICE"
    )
    yield _judged("user", f"is {user}" if user else f"{around.process_name} is root", {"uid": user}, warning=None if user else advice)
    yield from _rights(around, status)
    fixed = os.statvfs(around.root).f_flag & os.ST_RDONLY
    advice = "make it read-only: securityContext.readOnlyRootFilesystem: true, docker: --read-only; framegate writes only to its volumes"
    words = "is read-only" if fixed else "is writable" if around.in_container else "is writable, and no container's"
    yield _judged("root file system", words, warning=advice if around.in_container and not fixed else None)


def _status(around: Surroundings) -> dict[str, str]:
    try:
        lines = (around.process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _rights(around: Surroundings, status: dict[str, str]) -> Iterator[Finding]:
    if "CapEff" not in status:
        yield unknown("permissions", "capabilities", f"{around.process}/status cannot be read")
        return
    held = int(status["CapEff"], 16) & ~_BIND_LOW_PORTS
    advice = "drop them: securityContext.capabilities.drop: [ALL], docker: --cap-drop ALL" if held and around.in_container else None
    words = f"{held.bit_count()} are in force" if held else "framegate has no unnecessary capabilities"
    yield _judged("capabilities", words, {"capabilities": f"{held:x}"}, warning=advice)
    if around.in_container and status.get("NoNewPrivs") == "0":
        advice = "securityContext.allowPrivilegeEscalation: false, docker: --security-opt no-new-privileges"
        yield _judged("new privileges", "programs with the setuid bit can gain privileges (no_new_privs is off)", warning=advice)


def look_at_pod(around: Surroundings) -> Iterator[Finding]:
    """The pod's grace period, and for each file that is to be replaced at run time, whether it can be."""
    if not around.in_kubernetes:
        yield judged("kubernetes", "pod", "framegate does not run in a pod")
    elif around.config is not None:
        seconds = -(-around.config.drain.timeout_ms // 1000) + -(-around.config.drain.delay_ms // 1000)
        words = f"cannot be read from inside; it must be longer than preStop, and drain.delay and drain.timeout, {seconds} s, together"
        figures = {"drain_s": seconds, "least_s": seconds + BESIDE_DRAIN_S}
        yield unknown("kubernetes", "terminationGracePeriodSeconds", words, f"set it to {seconds + BESIDE_DRAIN_S} or more", figures)
    if around.config is None:
        return
    text = around.text("proc/self/mountinfo")
    if text is None:
        yield unknown("kubernetes", "mounts", "/proc/self/mountinfo cannot be read")
        return
    paths = sorted({item.path for item in tls_files(around.config)} | {path for _, name, path in named_paths(around.config) if name in _SECRET})
    found = mounts(text)
    fixed = [finding for path in paths if (finding := _fixed(path, mount_of(os.path.abspath(path), found))) is not None]
    yield from fixed
    if paths and not fixed:
        yield judged("kubernetes", "mounts", f"{counted(len(paths), 'file')}, which can be replaced while framegate runs", {"files": len(paths)})


def _fixed(path: str, mount: Mount | None) -> Finding | None:
    if mount is not None and (_ATOMIC.search(mount.root) or "/volume-subpaths/" in mount.root):
        words = f"is mounted by subPath (at {mount.point}): what takes its place in the Secret or ConfigMap never comes here"
        return judged("kubernetes", path, words, warning="mount the volume as a folder, without subPath, and name the file in it")
    if mount is not None and mount.point == os.path.abspath(path):
        words = "is mounted as a single file: another one that takes its place outside is not seen here"
        return judged("kubernetes", path, words, warning="mount the folder that it lies in")
    return None
