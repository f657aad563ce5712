"""The methods of the API: which role each needs, and whether a call leaves an audit row, as the options of the method in its .proto file say.

Both are enforced by ``interceptor``: a caller without the role is refused, and so is a change whose row cannot be kept.
"""

import importlib
import pkgutil
from typing import Final, NamedTuple

from google.protobuf.descriptor import MethodDescriptor

from framegate.control import v1
from framegate.control.v1 import options_pb2

_REFLECTION: Final = "grpc.reflection."


class Access(NamedTuple):
    """What a method needs."""

    role: options_pb2.Role.ValueType  # of the caller; each includes the one before it
    audited: bool  # whether each call leaves a row
    urgent: bool = False  # it works also when its row cannot be written now, an update if it lowers every value that it changes


def _methods() -> dict[str, MethodDescriptor]:
    names = sorted(module.name for module in pkgutil.iter_modules(v1.__path__) if module.name.endswith("_pb2"))
    files = [importlib.import_module(f"{v1.__name__}.{name}").DESCRIPTOR for name in names]
    services = [service for file in files for service in file.services_by_name.values()]
    return {f"{service.full_name}/{method.name}": method for service in services for method in service.methods}


def _access(method: MethodDescriptor) -> Access:
    options = method.GetOptions()
    return Access(options.Extensions[options_pb2.role], options.Extensions[options_pb2.audited], options.Extensions[options_pb2.urgent])


METHODS: Final = {name: _access(method) for name, method in _methods().items()}  # by ``package.Service/Method``, by service


def access_of(method: str) -> Access:
    """The access of ``package.Service/Method``; an unknown method needs the highest role and is audited."""
    if method.startswith(_REFLECTION):
        return Access(options_pb2.ROLE_VIEW, audited=False)
    return METHODS.get(method, Access(options_pb2.ROLE_ADMIN, audited=True))
