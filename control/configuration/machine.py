"""What this machine must provide, tried before anything is started: folders that can be written, socket paths and addresses that are free, memory.

A fault would end the start. What another process uses now is only a warning, and only for ``check``, which is run beside the instance that the new
configuration is for, as with ``nginx -t``. ``serve`` finds out by binding and ends with 1, which a supervisor may try again; a fault ends it with 2.

Access is tried and not derived from modes, because of access lists, read-only and full file systems, user namespaces and /proc. Nothing is left
behind: files are made without a name where the file system can (``O_TMPFILE``), addresses are bound for a moment and never listened on.
"""

import errno
import importlib.util
import os
import socket
import stat
import tempfile
from typing import Final

from framegate.control.configuration.broker_rules import port_ranges
from framegate.control.configuration.capacity import fitted, memory_warning
from framegate.control.configuration.cgroup import container
from framegate.control.configuration.document import Document, Path, entries, key_of
from framegate.control.configuration.listener_rules import handler_places
from framegate.control.configuration.units import format_about, format_size
from framegate.proxy.config.address import Address, format_sockaddr, parse_address
from framegate.proxy.config.model import ProxyConfig, TapConfig
from framegate.proxy.tap.record import LOCK_NAME, WRITERS_NAME
from framegate.proxy.tap.store import package_fault

Bound = list[tuple[Path, Address]]
IN_USE: Final = "is in use now"  # the beginning of a warning of what another process uses
_ADMIN: Final = "admin"
_EXTRAS: Final = {"otlp": "opentelemetry.exporter.otlp.proto.grpc"}
_KERNEL: Final = "/proc/sys/net/core"
_LOCKS: Final = "/proc/locks"
_PROBE_S: Final = 1.0
_MOST_PORTS: Final = 1024  # Ports of a range that are tried
_SHOWN_PORTS: Final = 3
_GIVE: Final = "give it to one of them (of a pod's volume: securityContext.fsGroup)"
_OWNERS: Final = stat.S_IWUSR | stat.S_IXUSR  # the rights that the owner of a folder needs to make files in it


def apply_machine(document: Document, config: ProxyConfig, bound: Bound, *, in_use: bool) -> None:
    """Add faults and warnings about what this machine does not provide. ``document``, ``config``: where the document has faults, the model lacks the
    values that are wrong. ``bound``: every address that is to be bound, with its key; without those that are faulty already.
    """
    _addresses(document, bound, in_use=in_use)
    _broker_ports(document, config, in_use=in_use)
    _audit(document, config)
    _tap(document, config, in_use=in_use)
    _extras(document, config)
    handler_places(document, config)
    if not document.faults:
        _memory(document, config)
        _kernel_limits(document, config)
        if config.tap is not None:
            _budget(document, config.tap)


def _addresses(document: Document, bound: Bound, *, in_use: bool) -> None:
    known: Bound = []
    written = dict(bound)
    for path, address in bound:
        if address.kind == "unix":
            _socket(document, path, address, in_use=in_use)
            continue
        try:
            found = bound_address(address)
        except OSError as error:
            document.add(path, f"cannot be bound: {error.strerror or error}")
            continue
        other = next((item for item, taken in known if taken.collides(found)), None)
        known.append((path, found))
        if other is not None:
            if "name" in (address.kind, written[other].kind):  # without a name the rules have found it in the file alone
                document.add(path, f"is {found} here, which is already used by {key_of(other)} (line {document.line(other)})")
            continue
        fault = bind_fault(found)
        if fault is not None and not fault[1]:
            document.add(path, f"cannot be bound: {fault[0]}")
        elif fault is not None and in_use:
            document.warn(path, f"{IN_USE}: serve cannot start until it is free")


def _broker_ports(document: Document, config: ProxyConfig, *, in_use: bool) -> None:
    """Ports of brokers that cannot be bound. One that is in use delays no start: its broker cannot be reached until it is free."""
    for path, base, ports in port_ranges(entries(("listeners",), config.listeners)):
        try:
            address = bound_address(base)
        except OSError:  # a fault of the listener's address
            continue
        faults = {port: fault for port in ports[:_MOST_PORTS] if (fault := bind_fault(address._replace(port=port))) is not None}
        refused = next(((port, words) for port, (words, busy) in faults.items() if not busy), None)
        if refused is not None:
            document.add(path, f"port {refused[0]} cannot be bound: {refused[1]}")
        elif faults and in_use:
            shown = ", ".join(map(str, list(faults)[:_SHOWN_PORTS])) + (" …" if len(faults) > _SHOWN_PORTS else "")
            document.warn(path, f"has ports that are in use now, {shown}: brokers that get them cannot be reached until they are free")


def _socket(document: Document, path: Path, address: Address, *, in_use: bool) -> None:
    fault = socket_fault(address.host, key_of(path))
    if fault is None and path[0] == _ADMIN:
        fault = lock_fault(f"{address.host}.lock")
    if fault is not None:
        document.add(path, f"cannot be used: {fault}", str(address))
        return
    # In a pod nobody else has access to framegate's container, and an emptyDir can be written by everybody.
    ours = path[0] == _ADMIN and "KUBERNETES_SERVICE_HOST" not in os.environ
    exposed = open_folder(os.path.dirname(address.host) or "/") if ours else None
    if exposed is not None:
        document.warn(path, f"can be replaced by other users: {exposed}", str(address))
    if in_use and is_served(address.host):
        who = "another framegate" if path[0] == _ADMIN else "another process"
        document.warn(path, f"{IN_USE}: {who} listens there, and serve cannot start until it has ended", str(address))


def _audit(document: Document, config: ProxyConfig) -> None:
    file = config.log.audit.file
    if file is not None:
        fault = folder_fault(os.path.dirname(file)) or (None if os.path.isdir(os.path.dirname(file)) else "its folder does not exist")
        if fault is None and os.path.lexists(file) and not stat.S_ISREG(os.lstat(file).st_mode):
            fault = "it is no ordinary file"
        if fault is not None:
            document.add(("log", "audit", "file"), f"cannot be used: {fault}")


def _tap(document: Document, config: ProxyConfig, *, in_use: bool) -> None:
    if config.tap is None:
        return
    path: Path = ("tap", "directory")
    directory = config.tap.directory
    lock = os.path.join(directory, LOCK_NAME)
    fault = folder_fault(directory) or lock_fault(lock) or lock_fault(os.path.join(directory, WRITERS_NAME))
    if fault is not None:
        document.add(path, f"cannot be used: {fault}")
        return
    holder = lock_holder(lock) if in_use else None
    if holder is not None:
        document.warn(path, f"{IN_USE}: another framegate (process {holder}) writes there, and serve cannot start until it has ended")


def _budget(document: Document, tap: TapConfig) -> None:
    try:
        free, used = free_bytes(tap.directory), tap_bytes(tap.directory)
    except OSError as error:
        document.add(("tap", "directory"), f"cannot be used: {error.strerror or error}")
        return
    if tap.budget > free + used:
        room = f"{format_about(free)} are free and {format_about(used)} are the tap's already"
        document.warn(("tap", "budget"), f"is more than the disk has room for: {room}", format_size(tap.budget))


def _extras(document: Document, config: ProxyConfig) -> None:
    for name, module in _EXTRAS.items():
        if getattr(config.telemetry, name) is not None and not _is_installed(module):
            document.add(("telemetry", name), f"needs {module}, which is not installed: pip install 'framegate[{name}]'")
    if config.tap is not None and config.tap.ship is not None and (fault := package_fault()):
        document.add(("tap", "ship"), fault)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _kernel_limits(document: Document, config: ProxyConfig) -> None:
    """Warn of backlogs and socket buffers that the kernel makes smaller."""
    most = _kernel_limit("somaxconn")
    for path, listener in entries(("listeners",), config.listeners):
        if most is not None and listener.backlog > most:
            document.warn((*path, "backlog"), f"is cut to {most} by the kernel (net.core.somaxconn)", listener.backlog)
    sides = [(path, item.socket) for path, item in entries(("listeners",), config.listeners)]
    sides += [(path, item.socket) for path, item in entries(("upstreams",), config.upstreams)]
    for name, limit in (("receive_buffer", "rmem_max"), ("send_buffer", "wmem_max")):
        most = _kernel_limit(limit)
        for path, options in sides:
            asked: int = getattr(options, name)
            if most is not None and asked > most:
                words = f"is cut to {format_size(most)} by the kernel (net.core.{limit})"
                document.warn((*path, "socket", name), words, format_size(asked))


def _kernel_limit(name: str) -> int | None:
    """A number of the kernel's network settings; None where it cannot be read, as in a network namespace without its own."""
    try:
        with open(os.path.join(_KERNEL, name), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _memory(document: Document, config: ProxyConfig) -> None:
    given = container()
    chosen = fitted(config, given)
    warning = memory_warning(chosen, chosen.processors, given.memory)
    if warning is not None:
        document.warn(("memory_pool", "size"), warning, format_size(chosen.memory_pool.size))


def nearest_folder(folder: str) -> str:
    """The folder itself, or the nearest one above it that exists."""
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def folder_fault(folder: str, advice: str = _GIVE) -> str | None:
    """Why no files can be made in a folder that exists, or is made when it is needed; None if they can. ``advice``: for a folder of another user."""
    nearest = nearest_folder(folder)
    if not os.path.isdir(nearest):
        return f"{nearest} is not a directory"
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except PermissionError as error:
        return f"{nearest} is not writable: {error.strerror}; {_owner_of(nearest, advice)}"
    except OSError as error:
        return f"{nearest} is not writable: {error.strerror or error}"
    return None


def _owner_of(folder: str, advice: str) -> str:
    try:
        found = os.stat(folder)
    except OSError as error:
        return f"its owner cannot be read: {error.strerror or error}"
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & _OWNERS != _OWNERS:
        return f"it is of this user ({found.st_uid}), mode {mode:04o}: chmod u+{'w' if mode & stat.S_IXUSR else 'wx'} {folder}"
    groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
    return (
        f"it is of user {found.st_uid} and group {found.st_gid}, mode {mode:04o}, and framegate is user {os.geteuid()} of the groups {groups}: "
        f"{advice}"
    )


def lock_fault(path: str) -> str | None:
    """Why an existing lock file cannot be used; None also if there is none."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"its lock file {path} cannot be opened: {error.strerror or error}"
    return None


def lock_holder(path: str) -> str | None:
    """The process that holds a lock and has written its number into the lock's file; None if there is none. The kernel's list of locks is read,
    because trying the lock could make a framegate fail that starts at this moment.
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


def socket_fault(path: str, key: str) -> str | None:
    """Why no Unix socket can be made at the path that a key of the configuration names, or None."""
    advice = f"set {key} to a path that this user can write, for example unix:run/{os.path.basename(path)}"
    fault = folder_fault(os.path.dirname(path), advice)
    if fault is not None:
        return fault
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror or error)
    return None if stat.S_ISSOCK(mode) else "a file that is not a socket exists at this path"


def open_folder(folder: str) -> str | None:
    """Whether others may make files in a folder, or replace it; None if only this user and root may. A folder that does not exist is made for its
    owner alone.
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
    """Whether a process listens on a Unix socket now."""
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
    """The address of a host name here; any other address is itself. Raises OSError."""
    if address.kind != "name":
        return address
    family, _, _, _, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return parse_address(format_sockaddr(family, sockaddr), port_zero=True)


def bind_fault(address: Address) -> tuple[str, bool] | None:
    """Why an internet address (no name) cannot be bound, and whether only because it is in use now; None if it can."""
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
    """Bytes of the segments in a tap's directory. Raises OSError."""
    from framegate.proxy.tap.log_reader import segments, streams  # the log's modules are loaded only if there is a tap

    return sum(segment.size for stream in streams(directory) for segment in segments(directory, stream))
