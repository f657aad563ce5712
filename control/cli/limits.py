"""``framegate limits``: get and set maxReceiveSize."""

from typing import TYPE_CHECKING

import click

from control.cli.kinds import SIZE
from control.cli.options import admin_options, example

if TYPE_CHECKING:
    from control.gen.framegate.control.v1 import limit_service_pb2 as pb2

__all__ = ["limits"]


@click.group(epilog=example("framegate limits set --listener kafka --max-receive-size 1MiB"))
def limits() -> None:
    """The largest frames that clients may send."""


@limits.command(epilog=example("framegate limits get"))
@click.option("--listener", help="Only this listener.")
@admin_options
def get(listener: str | None, address: str, output: str) -> None:
    """Show maxReceiveSize of each listener."""
    from control.cli.client import CALL_TIMEOUT_S, PAGE_SIZE, calling, pages
    from control.gen.framegate.control.v1 import limit_service_pb2 as pb2
    from control.gen.framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub

    def ask(token: str) -> pb2.ListLimitsResponse:
        return stub.ListLimits(pb2.ListLimitsRequest(page_size=PAGE_SIZE, page_token=token), timeout=CALL_TIMEOUT_S)

    with calling(address) as channel:
        stub = LimitServiceStub(channel)
        if listener is not None:
            found = [stub.GetLimit(pb2.GetLimitRequest(listener=listener), timeout=CALL_TIMEOUT_S).limit]
        else:
            found = [item for page in pages(ask) for item in page.limits]
    _print(found, output)


@limits.command("set", short_help="Change maxReceiveSize.", epilog=example("framegate limits set --listener kafka --max-receive-size 1MiB"))
@click.option("--listener", required=True, help="Whose clients.")
@click.option("--max-receive-size", type=SIZE, required=True, help="The largest frame body, as 1MiB.")
@admin_options
def set_(listener: str, max_receive_size: int, address: str, output: str) -> None:
    """Change maxReceiveSize, in every processor or in none; returns when it is in force."""
    from control.cli.client import CALL_TIMEOUT_S, calling, metadata
    from control.gen.framegate.control.v1 import limit_service_pb2 as pb2
    from control.gen.framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
    from proxy.config.model import MAX_RECEIVE_SIZE

    if not MAX_RECEIVE_SIZE.takes(max_receive_size):
        text = f"must be {MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most} bytes, not {max_receive_size}"
        raise click.BadParameter(text, param_hint="--max-receive-size")
    limit = pb2.Limit(listener=listener, max_receive_size_bytes=max_receive_size)
    with calling(address, change=True) as channel:
        answer = LimitServiceStub(channel).UpdateLimit(pb2.UpdateLimitRequest(limit=limit), timeout=CALL_TIMEOUT_S, metadata=metadata())
    _print([answer.limit], output)


def _print(found: "list[pb2.Limit]", output: str) -> None:
    from control.cli.output import as_dict, print_json, print_table, size_text

    if output == "json":
        print_json([as_dict(limit) for limit in found])
        return
    rows = ((limit.listener, size_text(limit.max_receive_size_bytes), limit.max_receive_size_bytes) for limit in found)
    print_table(("LISTENER", "MAX RECEIVE SIZE", "BYTES"), rows)
