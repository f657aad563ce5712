"""What a start needs of this machine, asked without starting: folders that can be written, socket paths that are free, addresses that can be bound.

Every answer is a sentence that says why not, or None. Nothing is left behind: files are made without a name where the file system knows that
(``O_TMPFILE``), addresses are bound for a moment and never listened on, so nobody is kept from anything. Tried rather than derived from modes:
access lists, read-only and full file systems, user namespaces and /proc are believed only when they are tried.
"""

import errno
import os
import socket
import stat
import tempfile
from typing import Final

from framegate.proxy.config.address import Address, format_sockaddr, parse_address

__all__ = ["bind_fault", "bound_address", "folder_fault", "free_bytes", "is_served", "lock_fault", "lock_holder", "socket_fault", "tap_bytes"]

_LOCKS: Final = "/proc/locks"
_PROBE_S: Final = 1.0


def nearest_folder(folder: str) -> str:
    """The folder itself, or the nearest above it that something has the name of."""
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def folder_fault(folder: str) -> str | None:
    """Why no files can be made in a folder that is there, or is made when it is needed."""
    nearest = nearest_folder(folder)
    if not os.path.isdir(nearest):
        return f"{nearest} is not a directory"
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except PermissionError as error:
        return f"{nearest} is not writable: {error.strerror}; {_whose(nearest)}"
    except OSError as error:
        return f"{nearest} is not writable: {error.strerror or error}"
    return None


def _whose(folder: str) -> str:
    """Who may write in a folder, and what to do about it."""
    try:
        found = os.stat(folder)
    except OSError as error:
        return f"whose it is cannot be told: {error.strerror or error}"
    groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
    return (
        f"it is of user {found.st_uid} and group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):04o}, and framegate is user {os.geteuid()} of the "
        f"groups {groups}: give it to one of them (of a pod's volume: securityContext.fsGroup)"
    )


def lock_fault(path: str) -> str | None:
    """Why a lock's file that is there cannot be used; None as well when there is none yet."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"its lock file {path} cannot be opened: {error.strerror or error}"
    return None


def lock_holder(path: str) -> str | None:
    """The process that holds a lock and has written its number into the lock's file; None when nobody does.

    Asked of the kernel's list: to try the lock would keep a framegate that starts at this moment from it.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            holder = file.readline(64).strip()
            inode = os.fstat(file.fileno()).st_ino
        with open(_LOCKS, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    held = any("FLOCK" in row and holder in row and any(word.endswith(f":{inode}") for word in row) for row in rows)
    return holder if held and holder else None


def socket_fault(path: str) -> str | None:
    """Why no Unix socket can be made at a path."""
    fault = folder_fault(os.path.dirname(path))
    if fault is not None:
        return fault
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror or error)
    return None if stat.S_ISSOCK(mode) else "a file that is no socket is in the way"


def open_folder(folder: str) -> str | None:
    """That others may make files in a folder, or put another folder in its place; None where only this user and root may.

    A folder that is not there yet is made for its owner alone.
    """
    nearest = place = os.path.realpath(nearest_folder(folder))
    while True:
        mode = os.stat(place).st_mode
        sticky, here = mode & stat.S_ISVTX, place == nearest and place == os.path.realpath(folder)
        if (mode & stat.S_IWOTH and (here or not sticky)) or (here and mode & stat.S_IWGRP and not sticky):
            who = "everybody" if mode & stat.S_IWOTH else f"the group {os.stat(place).st_gid}"
            return f"{place} can be written by {who} (mode {stat.S_IMODE(mode):04o}); chmod 0700"
        if here and os.stat(place).st_uid not in (0, os.geteuid()):
            return f"{place} is of user {os.stat(place).st_uid}, and framegate is user {os.geteuid()}; chown it"
        if place == os.path.dirname(place):
            return None
        place = os.path.dirname(place)


def is_served(path: str) -> bool:
    """Whether somebody listens on a Unix socket now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (BlockingIOError, TimeoutError):
            return True  # its queue is full
        except OSError:
            return False
    return True


def bound_address(address: Address) -> Address:
    """What a host name stands for here; any other address is itself. Raises OSError."""
    if address.kind != "name":
        return address
    family, _, _, _, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return parse_address(format_sockaddr(family, sockaddr), port_zero=True)


def bind_fault(address: Address) -> tuple[str, bool] | None:
    """Why an internet address (no name) cannot be bound, and whether only because it is in use now."""
    family = address.family
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((address.host, address.port))
    except OSError as error:
        return str(error.strerror or error), error.errno == errno.EADDRINUSE
    return None


def free_bytes(folder: str) -> int:
    """Bytes that this user may still write in a folder, or where it will be made. Raises OSError."""
    status = os.statvfs(nearest_folder(folder))
    return status.f_bavail * status.f_frsize


def tap_bytes(directory: str) -> int:
    """Bytes of the segments that lie in a tap's directory. Raises OSError."""
    from framegate.proxy.tap.log_reader import segments, streams  # only who taps pays for the log's modules

    return sum(segment.size for stream in streams(directory) for segment in segments(directory, stream))
