"""Kafka's messages for authentication: requests and answers of ApiVersions, SaslHandshake and SaslAuthenticate.

A request's header is ``key, version, correlation id, client id``, and tagged fields from its first flexible version on; an answer's header is the
correlation id, and tagged fields likewise. ApiVersions' answer has none, because a client must understand it without knowing its version.
Source: Kafka's message definitions; the same bytes as kafka-python's.
"""

import re
from dataclasses import dataclass
from typing import Final

from framegate.proxy.auth.wire import MalformedError, Reader, Tags, Writer
from framegate.proxy.kafka.schema import api

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36

NONE: Final = 0
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
SASL_AUTHENTICATION_FAILED: Final = 58
UNKNOWN_SERVER_ERROR: Final = -1

_SOFTWARE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_RANGE_SIZE: Final = 6


@dataclass(frozen=True, slots=True)
class ApiRange:
    """The versions of a request that one side understands, and further facts about it."""

    key: int
    least: int
    most: int
    tags: Tags = ()


SUPPORTED: Final = {item.key: item for item in (ApiRange(SASL_HANDSHAKE, 0, 1), ApiRange(API_VERSIONS, 0, 4), ApiRange(SASL_AUTHENTICATE, 0, 2))}
"""The versions that we understand."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request; without ``client_id`` if we do not know the version, whose header may be different."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None = None

    @property
    def is_supported(self) -> bool:
        """Whether the rest of the request can be read."""
        known = SUPPORTED.get(self.key)
        return known is not None and known.least <= self.version <= known.most


def _is_flexible(key: int, version: int) -> bool:
    known = api(key)
    return known is not None and known.is_flexible(version)


def read_request_header(reader: Reader) -> RequestHeader:
    """Read a header; of a request or version that is not supported only its first 8 bytes. Raises MalformedError."""
    key, version, correlation_id = reader.int16("api key"), reader.int16("api version"), reader.int32("correlation id")
    header = RequestHeader(key, version, correlation_id)
    if not header.is_supported:
        return header
    client_id = reader.nullable_string("client id")
    if _is_flexible(key, version):
        reader.tags("tagged fields of the header")
    return RequestHeader(key, version, correlation_id, client_id)


def request_writer(header: RequestHeader) -> Writer:
    """A writer with the header of a request."""
    writer = Writer()
    writer.int16(header.key)
    writer.int16(header.version)
    writer.int32(header.correlation_id)
    writer.string(header.client_id)
    if _is_flexible(header.key, header.version):
        writer.tags()
    return writer


def answer_writer(header: RequestHeader) -> Writer:
    """A writer with the header of the answer to a request."""
    writer = Writer()
    writer.int32(header.correlation_id)
    if header.key != API_VERSIONS and _is_flexible(header.key, header.version):
        writer.tags()
    return writer


def answer_reader(body: bytes, header: RequestHeader) -> Reader:
    """A reader after the header of the answer to a request; raises MalformedError if it is the answer to another one."""
    reader = Reader(body)
    found = reader.int32("correlation id")
    if found != header.correlation_id:
        raise MalformedError(f"correlation id {found} where {header.correlation_id} was asked")
    if header.key != API_VERSIONS and _is_flexible(header.key, header.version):
        reader.tags("tagged fields of the header")
    return reader


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    """Asks which requests are understood. From version 3 on it names the client's software."""

    software_name: str = ""
    software_version: str = ""

    def is_valid(self, version: int) -> bool:
        """Whether name and version are what KIP-511 allows."""
        return version < 3 or all(_SOFTWARE.fullmatch(text) for text in (self.software_name, self.software_version))

    @classmethod
    def read(cls, reader: Reader, version: int) -> "ApiVersionsRequest":
        name = number = ""
        if version >= 3:
            name, number = reader.string("client software name", compact=True), reader.string("client software version", compact=True)
            reader.tags("tagged fields")
        reader.end("ApiVersions")
        return cls(name, number)

    def write(self, writer: Writer, version: int) -> None:
        if version >= 3:
            writer.string(self.software_name, compact=True)
            writer.string(self.software_version, compact=True)
            writer.tags()


@dataclass(frozen=True, slots=True)
class ApiVersionsAnswer:
    """The requests that are understood. ``tags``: from version 3 on, features (KIP-584) and further fields."""

    error: int
    ranges: tuple[ApiRange, ...] = ()
    tags: Tags = ()

    @classmethod
    def read(cls, reader: Reader, version: int) -> "ApiVersionsAnswer":
        compact = version >= 3
        error = reader.int16("error code")

        def read_range() -> ApiRange:
            key, least, most = reader.int16("api key"), reader.int16("least version"), reader.int16("greatest version")
            return ApiRange(key, least, most, reader.tags("tagged fields") if compact else ())

        ranges = reader.array("ApiVersions", read_range, _RANGE_SIZE, compact=compact)
        if version >= 1:
            reader.int32("throttle time")
        tags = reader.tags("tagged fields") if compact else ()
        reader.end("ApiVersions")
        return cls(error, tuple(ranges), tags)

    def write(self, writer: Writer, version: int) -> None:
        compact = version >= 3
        writer.int16(self.error)
        writer.count(len(self.ranges), compact=compact)
        for item in self.ranges:
            writer.int16(item.key)
            writer.int16(item.least)
            writer.int16(item.most)
            if compact:
                writer.tags(item.tags)
        if version >= 1:
            writer.int32(0)
        if compact:
            writer.tags(self.tags)


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """The mechanism that the client chooses. Version 0: its tokens follow as bare frames; 1: as SaslAuthenticate."""

    mechanism: str

    @classmethod
    def read(cls, reader: Reader) -> "HandshakeRequest":
        mechanism = reader.string("mechanism")
        reader.end("SaslHandshake")
        return cls(mechanism)

    def write(self, writer: Writer) -> None:
        writer.string(self.mechanism)


@dataclass(frozen=True, slots=True)
class HandshakeAnswer:
    """Whether the mechanism is enabled, and which ones are."""

    error: int
    mechanisms: tuple[str, ...]

    @classmethod
    def read(cls, reader: Reader) -> "HandshakeAnswer":
        error = reader.int16("error code")
        mechanisms = reader.array("mechanisms", lambda: reader.string("mechanism"), 2)
        reader.end("SaslHandshake")
        return cls(error, tuple(mechanisms))

    def write(self, writer: Writer) -> None:
        writer.int16(self.error)
        writer.count(len(self.mechanisms))
        for mechanism in self.mechanisms:
            writer.string(mechanism)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """SaslAuthenticate: the mechanism's next message from the client."""

    token: bytes

    def __repr__(self) -> str:
        return f"TokenRequest({len(self.token)} bytes)"

    @classmethod
    def read(cls, reader: Reader, version: int) -> "TokenRequest":
        compact = version >= 2
        token = reader.data("token", compact=compact)
        if compact:
            reader.tags("tagged fields")
        reader.end("SaslAuthenticate")
        return cls(token)

    def write(self, writer: Writer, version: int) -> None:
        writer.data(self.token, compact=version >= 2)
        if version >= 2:
            writer.tags()


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """SaslAuthenticate: the mechanism's next message from the server, or an error."""

    error: int  # NONE, or an error, which ``message`` describes
    message: str | None = None
    token: bytes = b""
    lifetime_ms: int = 0  # of the session, in the last answer (KIP-368), from version 1 on; 0: unlimited

    def __repr__(self) -> str:
        return f"TokenAnswer({self.error}, {self.message!r}, {len(self.token)} bytes, {self.lifetime_ms} ms)"

    @classmethod
    def read(cls, reader: Reader, version: int) -> "TokenAnswer":
        compact = version >= 2
        error, message = reader.int16("error code"), reader.nullable_string("error message", compact=compact)
        token = reader.data("token", compact=compact)
        lifetime = reader.int64("session lifetime") if version >= 1 else 0
        if compact:
            reader.tags("tagged fields")
        reader.end("SaslAuthenticate")
        return cls(error, message, token, lifetime)

    def write(self, writer: Writer, version: int) -> None:
        compact = version >= 2
        writer.int16(self.error)
        writer.string(self.message, compact=compact)
        writer.data(self.token, compact=compact)
        if version >= 1:
            writer.int64(self.lifetime_ms)
        if compact:
            writer.tags()
