"""framegate.proxy.errors: the tree, and the facts that errors carry."""

import inspect

from framegate.proxy import errors
from framegate.proxy.errors import (
    FrameTooLargeError,
    IllegalTransitionError,
    InternalError,
    NegativeSizeError,
    ProxyError,
    TlsError,
    WrongProtocolError,
    quoted,
)
from tests.fakes.cases import each_of


def test_every_error_is_in_the_drawing_and_below_the_base() -> None:
    classes = [item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, Exception)]
    assert errors.__doc__ is not None
    for item in classes:
        assert issubclass(item, ProxyError)
        assert item.__name__ in errors.__doc__


def test_messages_are_built_from_facts() -> None:
    error = FrameTooLargeError(11, 10, side="downstream")
    assert (error.size, error.limit, error.side, str(error)) == (11, 10, "downstream", "frame of 11 bytes exceeds the limit of 10")
    assert NegativeSizeError(-1, side="upstream").size == -1
    assert WrongProtocolError("TLS", side="downstream").protocol == "TLS"
    assert TlsError("no", reason="unknown_ca").reason == "unknown_ca"


def test_an_illegal_transition_is_our_bug() -> None:
    error = IllegalTransitionError("here", "this")
    assert isinstance(error, InternalError)
    assert (error.state, error.event, error.side) == ("here", "this", "internal")


@each_of(
    ("text", "words"),
    [
        ("", "''"),
        ("a\x01\n'", '"a\\x01\\n\'"'),
        ("x" * 100, repr("x" * 100)),
        ("x" * 101, repr("x" * 100 + "…")),
        ("\0" * 70_000, repr("\0" * 100 + "…")),
    ],
)
def test_what_a_peer_said_is_quoted_and_cut(text: str, words: str) -> None:
    assert quoted(text) == words
