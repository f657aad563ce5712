"""What errors of calls become."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from click.testing import CliRunner

from framegate.control.bounds import MAX_PAGE_SIZE
from framegate.control.cli.client import CALL_TIMEOUT_S, CLIENT_KEY, EXIT_CODES, PAGE_SIZE, Service, metadata
from framegate.control.cli.commands import main
from framegate.control.errors import UnavailableError
from framegate.control.service import interceptor
from framegate.control.v1.listener_service_pb2 import ListListenersRequest, ListListenersResponse
from tests.fakes.cases import each_of
from tests.fakes.cli import VERBS, Answering, Cli, answering, start_cli

CODES = {
    grpc.StatusCode.CANCELLED: 1,
    grpc.StatusCode.UNKNOWN: 1,
    grpc.StatusCode.INVALID_ARGUMENT: 2,
    grpc.StatusCode.DEADLINE_EXCEEDED: 5,
    grpc.StatusCode.NOT_FOUND: 3,
    grpc.StatusCode.ALREADY_EXISTS: 4,
    grpc.StatusCode.PERMISSION_DENIED: 1,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 1,
    grpc.StatusCode.FAILED_PRECONDITION: 1,
    grpc.StatusCode.ABORTED: 4,
    grpc.StatusCode.OUT_OF_RANGE: 2,
    grpc.StatusCode.UNIMPLEMENTED: 1,
    grpc.StatusCode.INTERNAL: 1,
    grpc.StatusCode.UNAVAILABLE: 5,
    grpc.StatusCode.DATA_LOSS: 1,
    grpc.StatusCode.UNAUTHENTICATED: 1,
}  # the documented exit codes, for every way in which a call can fail


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answering, str]]:
    address = f"unix:{tmp_path_factory.mktemp('failing')}/admin.sock"
    with answering(address) as server:
        yield server, address


def test_every_code_of_grpc_is_in_the_table() -> None:
    assert set(CODES) | {grpc.StatusCode.OK} == set(grpc.StatusCode)
    assert all(CODES[grpc.StatusCode[code]] == number for code, number in EXIT_CODES.items())


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_failed_call_exits_with_the_code_of_readme(failing: tuple[Answering, str], words: tuple[str, ...]) -> None:
    server, address = failing
    for server.code, number in CODES.items():
        for output in ("table", "json"):
            result = CliRunner().invoke(main, [*words, "--address", address, "--output", output])
            assert (result.exit_code, result.stdout) == (number, ""), server.code
            (line,) = result.stderr.splitlines()
            assert line.startswith("framegate: "), line


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_nobody_there_exits_with_5_and_a_hint(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*words, "--address", f"unix:{tmp_path}/admin.sock"])
    assert (result.exit_code, result.stdout) == (5, "")
    (line,) = result.stderr.splitlines()
    assert f"cannot be reached: there is no socket {tmp_path}/admin.sock; is `framegate serve` running there?" in line


def test_every_wrong_field_has_a_line(cli: Cli) -> None:
    result = cli("channels", "mute", "0-1-7", "--reason", "x" * 300)
    assert (result.exit_code, result.stderr) == (2, "framegate: --reason: must have at most 256 characters, not 300\n")


def test_a_fault_of_the_proxy_exits_with_1(cli: Cli) -> None:
    cli.plane.failure = ZeroDivisionError("secret")
    result = cli("channels", "unmute", "--filter", "listener=kafka")
    assert (result.exit_code, result.stderr) == (1, "framegate: a fault of framegate itself; its log says more (INTERNAL)\n")


def test_a_change_that_cannot_be_audited_exits_with_1_because_the_api_answered(cli: Cli) -> None:
    for reason, code in (("AUDIT_BLOCKED", 1), ("PROCESSOR_SILENT", 5)):
        cli.plane.failure = UnavailableError("not now", reason=reason)
        result = cli("channels", "unmute", "--filter", "listener=kafka")
        assert (result.exit_code, result.stderr) == (code, f"framegate: not now ({reason})\n")


def test_a_server_that_goes_away_during_a_change_leaves_it_open_what_was_done(failing: tuple[Answering, str]) -> None:
    server, address = failing
    server.code = grpc.StatusCode.UNAVAILABLE
    looked = CliRunner().invoke(main, ["status", "--address", address]).stderr
    changed = CliRunner().invoke(main, ["drain", "--address", address]).stderr
    assert looked == f"framegate: the connection to the admin API at {address} broke during the call (this is UNAVAILABLE)\n"
    assert changed == looked.rstrip("\n") + "; the change may have taken effect\n"


def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.cli.client.CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(Service.ask, "__defaults__", (0.1,))  # it was taken from there
    with answering(f"unix:{tmp_path}/s"):
        result = CliRunner().invoke(main, ["status", "--address", f"unix:{tmp_path}/s"])
    assert (result.exit_code, result.stderr) == (5, f"framegate: the admin API at unix:{tmp_path}/s did not answer within 0.1 s\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status",), "framegate: interrupted\n"),
        (("drain",), "framegate: interrupted; the change may have taken effect\n"),
        (("pool", "set", "--processors", "2"), "framegate: interrupted; the change may have taken effect\n"),
    ],
    ids=["look", "drain", "pool"],
)
def test_ctrl_c_during_a_call_is_one_line_and_130(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with answering(f"unix:{tmp_path}/s") as server, start_cli(*words, "--address", f"unix:{tmp_path}/s") as process:
        assert server.arrived.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", said)


def test_service_and_command_line_mean_the_same_metadata() -> None:
    assert CLIENT_KEY == interceptor.CLIENT_KEY
    assert metadata()[0][1].isascii()


@each_of("count", [0, 1, 2, 3])
def test_every_page_of_a_list_is_asked_for_once(count: int) -> None:
    asked: list[str] = []

    def list_page(request: ListListenersRequest, timeout: float) -> ListListenersResponse:
        assert (request.page_size, timeout) == (PAGE_SIZE, CALL_TIMEOUT_S)
        asked.append(request.page_token)
        return ListListenersResponse(next_page_token=str(len(asked)) if len(asked) < count else "")

    channel = SimpleNamespace(unary_unary=lambda *_, **__: list_page)
    assert len(list(Service("listener").pages(channel, "ListListeners"))) == max(1, count)  # type: ignore[arg-type]
    assert asked == ["", "1", "2"][: max(1, count)]


def test_a_page_that_the_command_line_asks_for_is_the_largest_that_there_is() -> None:
    assert PAGE_SIZE == MAX_PAGE_SIZE
