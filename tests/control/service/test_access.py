"""The methods of the .proto files: each has a role, is answered, audited as it says, and at hand on the command line."""

import ast
import re
from pathlib import Path

import click
import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor

import framegate.control.cli
from framegate.control.cli.commands import main
from framegate.control.service.access import METHODS, Access, access_of
from framegate.control.v1.options_pb2 import Role
from framegate.proxy.config.model import TapConfig
from tests.fakes.cases import each_of
from tests.fakes.serving import Serving, run

CLI = Path(framegate.control.cli.__file__).parent
PROTOS = Path(__file__).resolve().parents[3] / "proto/framegate/control/v1"


RPCS: dict[str, MethodDescriptor] = {
    name: descriptor_pool.Default().FindServiceByName(name.partition("/")[0]).methods_by_name[name.partition("/")[2]] for name in METHODS
}


def called_by_the_command_line() -> set[str]:
    """The attributes and texts in the command line's modules, the methods of services among them."""
    nodes = [node for path in CLI.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return {node.attr if isinstance(node, ast.Attribute) else str(node.value) for node in nodes if isinstance(node, ast.Attribute | ast.Constant)}


def test_every_method_of_every_proto_file_is_known_and_has_a_role() -> None:
    protos = [path.read_text() for path in PROTOS.glob("*.proto")]
    assert sorted(name.rpartition("/")[2] for name in METHODS) == sorted(
        name for text in protos for name in re.findall(r"^  rpc (\w+)\(", text, re.M)
    )
    assert [name for name, access in METHODS.items() if access.role == Role.ROLE_UNSPECIFIED] == []


def test_methods_that_only_show_need_the_role_view_and_all_others_are_audited() -> None:
    for method, access in METHODS.items():
        looks = method.rpartition("/")[2].startswith(("Explain", "Get", "List", "Watch"))
        assert looks == (access.role == Role.ROLE_VIEW) == (not access.audited), method


def test_a_method_that_is_not_in_the_table_needs_the_role_admin_and_is_audited() -> None:
    assert access_of("framegate.control.v1.ChannelService/Forgotten") == Access(Role.ROLE_ADMIN, audited=True)


async def check_every_method(at: Serving) -> None:
    """Each is answered, and leaves a row just when the table says so."""
    for name, rpc in RPCS.items():
        answer = message_factory.GetMessageClass(rpc.output_type)
        kind = at.channel.unary_stream if rpc.server_streaming else at.channel.unary_unary
        call = kind(f"/{name}", lambda request: request.SerializeToString(), answer.FromString)(message_factory.GetMessageClass(rpc.input_type)())
        code = grpc.StatusCode.OK
        try:
            await (call.read() if rpc.server_streaming else call)
        except grpc.aio.AioRpcError as error:
            code = error.code()
        assert code not in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL), name
        assert [row["method"] for row in at.plane.audits] == ([name] if METHODS[name].audited else []), name
        at.plane.audits.clear()
        call.cancel()


@each_of("tap", [None, TapConfig(directory="/nowhere")])
def test_every_method_has_a_handler_and_leaves_a_row_just_when_the_table_says_so(tap: TapConfig | None) -> None:
    run(check_every_method, tap=tap)


def test_every_method_has_a_verb_of_the_command_line() -> None:
    """A ``Get`` of what a ``List`` shows whole needs none."""
    names = {name.rpartition("/")[2] for name in METHODS}
    listed = {name.replace("Get", "List", 1) + "s" for name in names if name.startswith("Get")} & names
    assert {name for name in names if name.replace("Get", "List", 1) + "s" not in listed} <= called_by_the_command_line()


def test_every_option_that_a_change_may_have_is_one_of_its_verb() -> None:
    """``--etag``, ``--reason`` and ``--dry-run`` are those of the fields of the request."""
    wrong = {}
    for name, rpc in RPCS.items():
        service, method = name.rpartition(".")[2].split("/")
        if not METHODS[name].audited or service == "ChannelService" or method == "CreateUser":  # which is a verb with UpdateUser
            continue
        fields = {
            *rpc.input_type.fields_by_name,
            *(inner for field in rpc.input_type.fields if field.message_type for inner in field.message_type.fields_by_name),
        }
        wanted = {option for option, field in OPTIONS.items() if field in fields and (option, method) not in WITHOUT}
        found = {option for option in OPTIONS for command in verbs(method) if option in [name for item in command.params for name in item.opts]}
        if found != wanted:
            wrong[name] = found ^ wanted
    assert wrong == {}


OPTIONS = {"--etag": "etag", "--reason": "reason", "--dry-run": "validate_only"}
WITHOUT = {("--etag", "CreateTapRule")}  # what is created has no etag yet
VERBS = {
    "ApplyConfiguration": ["config apply"],
    "ReloadCertificates": ["certificates reload"],
    "UpdateKafkaRules": ["kafka-rules set"],
    "UpdateLimit": ["limits set"],
    "UpdateNodeLimits": ["limits set"],
    "UpdateLog": ["log set"],
    "UpdateMemoryPool": ["pool set"],
    "UpdateProcessorPool": ["pool set"],
    "DrainProxy": ["drain"],
    "CreateTapRule": ["taps add"],
    "UpdateTapRule": ["taps set"],
    "DeleteTapRule": ["taps remove"],
    "UpdateUser": ["users add"],
    "DeleteUser": ["users remove"],
}


def verbs(method: str) -> list[click.Command]:
    found = []
    for words in VERBS.get(method, []):
        command: click.Command = main
        for word in words.split():
            assert isinstance(command, click.Group)
            got = command.get_command(click.Context(command), word)
            assert got is not None
            command = got
        found.append(command)
    return found
