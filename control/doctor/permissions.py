"""Who may read keys, who may take the admin socket's place, and what this process may do beyond its work."""

import dataclasses
import os
import stat
import typing
from collections.abc import Iterator
from typing import Any, Final

from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings
from proxy.config.address import parse_address
from proxy.config.key import keys

__all__ = ["look", "secret_files"]

_SECRET: Final = ("key", "password_file", "token_file", "users")
"""Keys of the configuration that name a file with a secret in it."""


def look(around: Surroundings) -> Iterator[Finding]:
    """Files, the socket's folder, the user, its rights."""
    if around.config is not None:
        for key, path in secret_files(around.config):
            yield _secret(key, path, around.in_kubernetes)
        address = parse_address(around.config.admin.address)
        if address.kind == "unix":
            yield _folder(os.path.dirname(address.host) or "/")
    yield _user(around)
    yield from _rights(around)
    yield _root(around)


def secret_files(section: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every file with a secret that a configuration names, behind its key."""
    for name, said in keys(typing.cast(type, type(section))).items():
        value = getattr(section, name)
        where = f"{key}.{name}" if key else name
        for place, item in enumerate(value) if isinstance(value, tuple) else [(-1, value)]:
            inner = where if place < 0 else f"{where}[{place}]"
            if dataclasses.is_dataclass(item):
                yield from secret_files(item, inner)
            elif said.unit == "path" and name in _SECRET and isinstance(item, str):
                yield inner, item


def _secret(key: str, path: str, in_pod: bool) -> Finding:
    subject = f"{key} = {path}"
    try:
        found = os.stat(path)
    except OSError as error:
        return Finding("permissions", subject, "fault", f"cannot be looked at: {error.strerror or error}", "make it readable for framegate's user")
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    words, figures = f"has the mode {mode}, user {found.st_uid}, group {found.st_gid}", {"mode": mode}
    # In a pod nobody else looks into framegate's container, and its one user reads a Secret, which is root's, only as one of all.
    if found.st_mode & (stat.S_IWOTH if in_pod else stat.S_IROTH | stat.S_IWOTH):
        advice = f"chmod 0640 {path} (Kubernetes: defaultMode: 0444 of the volume)"
        return Finding("permissions", subject, "warning", f"{words}: everybody may read or write it", advice, figures)
    return Finding("permissions", subject, "ok", words, figures=figures)


def _folder(folder: str) -> Finding:
    """Whose it is; that others may write there, ``framegate check`` warns."""
    subject = f"folder of the admin socket, {folder}"
    try:
        found = os.stat(folder)
    except OSError as error:
        return Finding("permissions", subject, "unknown", f"{error.strerror or error}; framegate needs it when it starts")
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    words = f"has the mode {mode}, user {found.st_uid}"
    if found.st_uid not in (0, os.geteuid()):
        advice = f"chown {folder} to framegate's user: whose it is may put a socket of their own in its place"
        return Finding("permissions", subject, "warning", words, advice, {"mode": mode})
    return Finding("permissions", subject, "ok", words, figures={"mode": mode})


def _user(around: Surroundings) -> Finding:
    status = _status(around)
    user = int((status.get("Uid") or str(os.geteuid())).split()[0])
    if user != 0:
        return Finding("permissions", "user", "ok", f"is {user}", figures={"uid": user})
    advice = (
        "run it as a user of its own: it needs no right of root's (Kubernetes: runAsNonRoot; systemd: User=); ports below 1024: CAP_NET_BIND_SERVICE"
    )
    return Finding("permissions", "user", "warning", f"{around.whose} is root", advice, {"uid": user})


def _status(around: Surroundings) -> dict[str, str]:
    try:
        lines = (around.process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _rights(around: Surroundings) -> Iterator[Finding]:
    status = _status(around)
    if "CapEff" not in status:
        yield Finding("permissions", "capabilities", "unknown", f"{around.process}/status cannot be read")
        return
    held = int(status["CapEff"], 16) & ~(1 << 10)  # CAP_NET_BIND_SERVICE, for ports below 1024
    if held and around.in_container:
        advice = "drop them: securityContext.capabilities.drop: [ALL], docker: --cap-drop ALL"
        yield Finding("permissions", "capabilities", "warning", f"{held.bit_count()} are in force", advice, {"capabilities": f"{held:x}"})
    else:
        words = f"{held.bit_count()} are in force" if held else "none that framegate has no use for"
        yield Finding("permissions", "capabilities", "ok", words, figures={"capabilities": f"{held:x}"})
    if around.in_container and status.get("NoNewPrivs") == "0":
        advice = "securityContext.allowPrivilegeEscalation: false, docker: --security-opt no-new-privileges"
        yield Finding("permissions", "new privileges", "warning", "a program with the setuid bit may get more rights", advice)


def _root(around: Surroundings) -> Finding:
    if os.statvfs(around.root).f_flag & os.ST_RDONLY:
        return Finding("permissions", "root file system", "ok", "is read-only")
    if not around.in_container:
        return Finding("permissions", "root file system", "ok", "is writable, and no container's")
    advice = "make it read-only: securityContext.readOnlyRootFilesystem: true, docker: --read-only; framegate writes only to its volumes"
    return Finding("permissions", "root file system", "warning", "is writable", advice)
