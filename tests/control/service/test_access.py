"""The table of methods is complete: each is in the API, answered, audited as it says, and at hand on the command line."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

import framegate.control.cli
from framegate.control import v1
from framegate.control.service.access import METHODS, Access, Role, access_of
from framegate.control.service.server import SERVICE_NAMES
from framegate.proxy.config.model import TapConfig
from tests.fakes.cases import each_of
from tests.fakes.serving import Serving, run

CLI = Path(framegate.control.cli.__file__).parent


def services() -> Iterator[ServiceDescriptor]:
    """Of every .proto file that is compiled."""
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            yield from importlib.import_module(f"{v1.__name__}.{module.name}").DESCRIPTOR.services_by_name.values()


RPCS: dict[str, MethodDescriptor] = {f"{service.full_name}/{method.name}": method for service in services() for method in service.methods}


def called_by_the_command_line() -> set[str]:
    """The names of all attributes in the command line's modules, the methods of stubs among them."""
    trees = [ast.parse(path.read_text()) for path in CLI.glob("*.py")]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_the_table_has_every_method_of_the_api_and_no_other() -> None:
    assert set(METHODS) == set(RPCS)
    assert set(SERVICE_NAMES) == {service.full_name for service in services()}


def test_methods_that_only_show_need_the_role_view_and_all_others_are_audited() -> None:
    for method, access in METHODS.items():
        looks = method.rpartition("/")[2].startswith(("Get", "List"))
        assert looks == (access.role is Role.VIEW) == (not access.audited), method


def test_a_method_that_is_not_in_the_table_needs_the_role_admin_and_is_audited() -> None:
    assert access_of("framegate.control.v1.ChannelService/Forgotten") == Access(Role.ADMIN, audited=True)


async def check_every_method(at: Serving) -> None:
    """Each is answered, and leaves a row just when the table says so."""
    for name, rpc in RPCS.items():
        answer = message_factory.GetMessageClass(rpc.output_type)
        call = at.channel.unary_unary(f"/{name}", lambda request: request.SerializeToString(), answer.FromString)
        code = grpc.StatusCode.OK
        try:
            await call(message_factory.GetMessageClass(rpc.input_type)())
        except grpc.aio.AioRpcError as error:
            code = error.code()
        assert code not in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL), name
        assert [row["method"] for row in at.plane.audits] == ([name] if METHODS[name].audited else []), name
        at.plane.audits.clear()


@each_of("tap", [None, TapConfig(directory="/nowhere")])
def test_every_method_has_a_handler_and_leaves_a_row_just_when_the_table_says_so(tap: TapConfig | None) -> None:
    run(check_every_method, tap=tap)


def test_every_method_has_a_verb_of_the_command_line() -> None:
    """A ``Get`` of what a ``List`` shows whole needs none."""
    names = {name.rpartition("/")[2] for name in METHODS}
    listed = {name.replace("Get", "List", 1) + "s" for name in names if name.startswith("Get")} & names
    assert {name for name in names if name.replace("Get", "List", 1) + "s" not in listed} <= called_by_the_command_line()
