"""``framegate status`` and ``framegate drain``."""

import click

from control.cli.kinds import DURATION
from control.cli.options import admin_options, example

__all__ = ["drain", "status"]


@click.command(epilog=example("framegate status"))
@admin_options
def status(address: str, output: str) -> None:
    """Show what a running framegate is and how it is."""
    from control.cli.client import CALL_TIMEOUT_S, calling
    from control.cli.output import as_dict, print_fields, print_json, time_text, word
    from control.gen.framegate.control.v1.proxy_service_pb2 import GetProxyRequest
    from control.gen.framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub

    with calling(address) as channel:
        row = as_dict(ProxyServiceStub(channel).GetProxy(GetProxyRequest(), timeout=CALL_TIMEOUT_S).proxy)
    if output == "json":
        print_json(row)
        return
    fields = [
        ("node", row["node"]), ("state", word(row["state"], "STATE_")), ("version", row["version"]),
        ("data path", "compiled" if row["compiled"] else "plain Python"), ("pid", row["pid"]), ("started", time_text(row.get("start_time"))),
        ("open connections", row["open_connection_count"]), ("config revision", row["config_revision"]),
    ]  # fmt: skip
    print_fields(fields)


@click.command(
    short_help="Take no new connections and end the open ones.",
    epilog=example("framegate drain --timeout 20s", "framegate drain --no-wait      # a preStop hook"),
)
@click.option("--timeout", type=DURATION, help="Close what is still open after this time, as 20s.  [default: drain.timeout of the configuration]")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when no connection is left, or as soon as draining has begun.")
@click.option("--reason", default="", help="Why; for the audit record.")
@admin_options
def drain(timeout: int | None, wait: bool, reason: str, address: str, output: str) -> None:
    """Take no new connections and end the open ones in order; says how many ended and how many are left.

    The process goes on; a drain cannot be taken back. What is still open after the timeout is closed with the cause drain_timeout.
    """
    from google.protobuf.duration_pb2 import Duration

    from control.cli.client import CALL_TIMEOUT_S, calling, metadata
    from control.cli.output import as_dict, counted, print_json, print_line
    from control.gen.framegate.control.v1.proxy_service_pb2 import DrainProxyRequest
    from control.gen.framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub

    request = DrainProxyRequest(wait=wait, reason=reason)
    if timeout is not None:
        request.timeout.CopyFrom(Duration(seconds=timeout // 1000, nanos=timeout % 1000 * 10**6))
    with calling(address, change=True) as channel:
        answer = ProxyServiceStub(channel).DrainProxy(request, timeout=None if wait else CALL_TIMEOUT_S, metadata=metadata())
    if output == "json":
        print_json(as_dict(answer))
        return
    ended, left = counted(answer.closed_connection_count, "connection"), answer.open_connection_count
    print_line(f"{'draining' if left else 'drained'}: {ended} ended, {left or 'none'} left")
