"""The brokers of a cluster as Kafka's Metadata names them: asked of one broker, and checked."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from framegate.control.accept.api_versions import question, ranges_in
from framegate.control.accept.broker_connection import Login, TlsOf, Wire, connected
from framegate.proxy.auth.messages import ApiRange, RequestHeader, answer_reader, request_writer
from framegate.proxy.auth.wire import Reader
from framegate.proxy.config.address import parse_address

MAX_BROKERS: Final = 10_000
_METADATA: Final = 3
_LEAST: Final = 1
_MOST: Final = 8  # Versions that are asked: before 1 an empty list of topics means all topics, and from 9 on the encoding is another one
_CORRELATION: Final = 1
_MAX_ANSWER: Final = 16 << 20  # Bytes: ten thousand brokers with the longest names


class LoginNeededError(ConnectionError):
    """A broker ended the connection at a request: it wants a login, and there is none."""


class Broker(NamedTuple):
    """A broker of a cluster, as Metadata names it to clients. ``rack``: empty: none."""

    node: int
    host: str
    port: int
    rack: str = ""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def metadata_question(ranges: Sequence[ApiRange]) -> tuple[int, bytes] | None:
    """The newest version that both know, and the request that asks for all brokers and no topic; None: there is no such version."""
    known = next((item for item in ranges if item.key == _METADATA), None)
    if known is None or known.most < _LEAST or known.least > _MOST:
        return None
    version = min(known.most, _MOST)
    request = request_writer(RequestHeader(_METADATA, version, _CORRELATION, "framegate"))
    request.count(0)
    # No topics are created, and no authorized operations are asked for.
    return version, request.message() + bytes(0 if version < 4 else 1 if version < 8 else 3)


def brokers_in(body: bytes, version: int) -> list[Broker]:
    """The brokers in an answer without its size. Raises MalformedError: it does not answer the question."""
    reader = answer_reader(body, RequestHeader(_METADATA, version, _CORRELATION))
    if version >= 3:
        reader.int32("throttle time")
    return reader.array("brokers", lambda: _broker(reader), 12)


def _broker(reader: Reader) -> Broker:
    return Broker(reader.int32("node id"), reader.string("host"), reader.int32("port"), reader.nullable_string("rack") or "")


def checked_brokers(brokers: Iterable[Broker]) -> dict[int, Broker]:
    """The brokers by node id, ascending. Raises ValueError with a sentence: the list cannot be that of a cluster."""
    found: dict[int, Broker] = {}
    for broker in brokers:
        if broker.node < 0 or broker.node in found:
            raise ValueError(f"the list of brokers has the node id {broker.node}{' twice' if broker.node in found else ''}")
        try:
            parse_address(str(broker), unix=False)
        except ValueError as error:
            raise ValueError(f"the list of brokers has for node {broker.node} no usable address: {error}") from None
        found[broker.node] = broker
        if len(found) > MAX_BROKERS:
            raise ValueError(f"the list of brokers has more than {MAX_BROKERS} entries")
    if not found:
        raise ValueError("the list of brokers is empty")
    return dict(sorted(found.items()))


async def ask_brokers(address: Wire, tls_of: TlsOf, login: Login | None, timeout_s: float) -> dict[int, Broker]:
    """Ask one broker for the brokers of its cluster. Raises OSError, EOFError: no connection, no TLS, no answer within the time; LoginNeededError;
    ProxyError: the login is refused, or an answer is none of Kafka's; ValueError: no common version of Metadata, or a list that cannot be that of a
    cluster.
    """
    async with asyncio.timeout(timeout_s), connected(address, tls_of) as connection:
        if login is None:
            ranges = ranges_in(await connection.ask(question()))
        else:
            from framegate.control.accept.broker_login import log_in  # loaded only for a login

            ranges = await log_in(connection, login)
        asked = metadata_question(ranges)
        if asked is None:
            raise ValueError("no version of Metadata is known both here and there")
        try:
            return checked_brokers(brokers_in(await connection.ask(asked[1], _MAX_ANSWER), asked[0]))
        except (EOFError, ConnectionError) as error:
            if login is not None:
                raise
            raise LoginNeededError("the connection was ended instead of an answer to Metadata: clients may have to log in first") from error
