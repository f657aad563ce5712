"""What this machine must give: rules that look beyond the file, before anything is started.

A fault is what would end the start: a folder that cannot be written, an address that is not this machine's, a file where a socket shall be.
What another process uses at this moment is only a warning, and only for ``check``: as ``nginx -t`` does, it is run beside the instance that the
new configuration is for. ``serve`` finds out by binding and ends with 1, which a supervisor may try again; a fault ends it with 2.
"""

import importlib.util
import os
from typing import Final

from framegate.control.configuration.capacity import fitted, memory_warning
from framegate.control.configuration.cgroup import container
from framegate.control.configuration.document import Document, Path, key_of
from framegate.control.configuration.listener_rules import handler_places
from framegate.control.configuration.places import (
    bind_fault,
    bound_address,
    folder_fault,
    free_bytes,
    is_served,
    lock_fault,
    lock_holder,
    open_folder,
    socket_fault,
    tap_bytes,
)
from framegate.control.configuration.units import format_size
from framegate.proxy.config.address import Address
from framegate.proxy.config.model import MIB, ProxyConfig, TapConfig
from framegate.proxy.tap.record import LOCK_NAME, WRITERS_NAME

__all__ = ["IN_USE", "apply_machine"]

Bound = list[tuple[Path, Address]]
IN_USE: Final = "is in use now"
"""How a warning of what another process uses begins."""
_ADMIN: Final = ("admin", "address")
_EXTRAS: Final = {"otlp": "opentelemetry.exporter.otlp.proto.grpc", "prometheus": "prometheus_client"}
_KERNEL: Final = "/proc/sys/net/core"


def apply_machine(document: Document, config: ProxyConfig, bound: Bound, *, in_use: bool) -> None:
    """Add to the document's faults and warnings what this machine does not give.

    Args:
        document: the configuration.
        config: the model; where the document has faults, without the values that are wrong.
        bound: every address that is to be bound, with its key; without those that are faulty already.
        in_use: warn of what another process uses now.
    """
    _addresses(document, bound, in_use=in_use)
    _tap(document, config, in_use=in_use)
    _extras(document, config)
    handler_places(document, config)
    if not document.faults:
        _memory(document, config)
        _backlogs(document, config)
        _buffers(document, config)
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
            if "name" in (address.kind, written[other].kind):  # otherwise the file alone shows it, and it has been said
                document.add(path, f"is {found} here, which is already used by {key_of(other)} (line {document.line(other)})")
            continue
        fault = bind_fault(found)
        if fault is not None and not fault[1]:
            document.add(path, f"cannot be bound: {fault[0]}")
        elif fault is not None and in_use:
            document.warn(path, f"{IN_USE}: serve cannot start until it is free")


def _socket(document: Document, path: Path, address: Address, *, in_use: bool) -> None:
    fault = socket_fault(address.host)
    if fault is None and path == _ADMIN:
        fault = lock_fault(f"{address.host}.lock")
    if fault is not None:
        document.add(path, f"cannot be used: {fault}", str(address))
        return
    exposed = open_folder(os.path.dirname(address.host) or "/") if path == _ADMIN else None
    if exposed is not None:
        document.warn(path, f"is where others can put a socket of their own: {exposed}", str(address))
    if in_use and is_served(address.host):
        who = "another framegate" if path == _ADMIN else "another process"
        document.warn(path, f"{IN_USE}: {who} listens there, and serve cannot start until it has ended", str(address))


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
        room = f"{format_size(free // MIB * MIB)} are free and {format_size(used // MIB * MIB)} are the tap's already"
        document.warn(("tap", "budget"), f"is more than the disk has room for: {room}", format_size(tap.budget))


def _extras(document: Document, config: ProxyConfig) -> None:
    for name, module in _EXTRAS.items():
        if getattr(config.telemetry, name) is not None and not _is_installed(module):
            document.add(("telemetry", name), f"needs {module}, which is not installed: pip install 'framegate[{name}]'")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _backlogs(document: Document, config: ProxyConfig) -> None:
    most = _kernel_limit("somaxconn")
    if most is None:
        return
    for index, listener in enumerate(config.listeners):
        if listener.backlog > most:
            document.warn(("listeners", index, "backlog"), f"is cut to {most} by the kernel (net.core.somaxconn)", listener.backlog)


def _buffers(document: Document, config: ProxyConfig) -> None:
    """Socket buffers that the kernel makes smaller than it was told."""
    sides = [("listeners", [item.socket for item in config.listeners]), ("upstreams", [item.socket for item in config.upstreams])]
    for name, limit in (("receive_buffer", "rmem_max"), ("send_buffer", "wmem_max")):
        most = _kernel_limit(limit)
        if most is None:
            continue
        for section, sockets in sides:
            for index, item in enumerate(sockets):
                asked: int = getattr(item, name)
                if asked > most:
                    path: Path = (section, index, "socket", name)
                    document.warn(path, f"is cut to {format_size(most)} by the kernel (net.core.{limit})", format_size(asked))


def _kernel_limit(name: str) -> int | None:
    """A number of the kernel's network settings; None where it does not tell, as for a network namespace that has none of its own."""
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
