"""The methods of the API: which role each needs, and whether a call leaves an audit row, as the options of the method in its .proto file say.

Roles are not checked yet, because callers cannot be told apart: only the user that runs framegate can open the admin socket, and has every role.
Audit is enforced: a change whose row cannot be kept is refused.
"""

import importlib
import pkgutil
from typing import Final, NamedTuple

from google.protobuf.descriptor import MethodDescriptor

from framegate.control import v1
from framegate.control.v1 import options_pb2

__all__ = ["METHODS", "Access", "access_of"]


class Access(NamedTuple):
    """Attributes: ``role`` that a caller needs (each includes the one before it); ``audited``: whether each call leaves a row."""

    role: options_pb2.Role.ValueType
    audited: bool


def _methods() -> dict[str, MethodDescriptor]:
    names = sorted(module.name for module in pkgutil.iter_modules(v1.__path__) if module.name.endswith("_pb2"))
    files = [importlib.import_module(f"{v1.__name__}.{name}").DESCRIPTOR for name in names]
    services = [service for file in files for service in file.services_by_name.values()]
    return {f"{service.full_name}/{method.name}": method for service in services for method in service.methods}


def _access(method: MethodDescriptor) -> Access:
    options = method.GetOptions()
    return Access(options.Extensions[options_pb2.role], options.Extensions[options_pb2.audited])


METHODS: Final = {name: _access(method) for name, method in _methods().items()}
"""By ``package.Service/Method``, by service."""


def access_of(method: str) -> Access:
    """The access of ``package.Service/Method``; an unknown method needs the highest role and is audited."""
    return METHODS.get(method, Access(options_pb2.ROLE_ADMIN, audited=True))
