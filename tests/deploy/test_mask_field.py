"""The worked example of a request logger: what it masks, what it logs, what it lets pass; and in a handler process of its own."""

import json
import logging
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.handler import PASS, Context, Replace
from tests.deploy.test_inject_faults import FOLDER, Lines, example_of
from tests.fakes.cases import each_of
from tests.fakes.handler_process import HandlerProcess, request

example = example_of("mask_field")
CONTEXT = Context(connection="0-1-7", listener="in", peer="127.0.0.1:5", principal="User:a", sequence=3, has_upstream=True)


def logged(*fields: str, **options: object):
    lines = Lines()
    log = logging.Logger("test")
    log.addHandler(lines)
    return example.MaskField(*fields, log=log, **options), lines.texts


@each_of(
    ("fields", "body", "masked"),
    [
        (("password",), {"password": "x", "a": 1}, {"password": "***", "a": 1}),
        (("password",), {"Password": {"deep": 1}, "a": [{"PASSWORD": None}]}, {"Password": "***", "a": [{"PASSWORD": "***"}]}),
        (("user.card",), {"user": {"card": 1, "name": "n"}, "card": 2}, {"user": {"card": "***", "name": "n"}, "card": 2}),
        (("users.name",), {"users": [{"name": 1}, {"name": 2}]}, {"users": [{"name": "***"}, {"name": "***"}]}),
        (("*.secret",), {"a": {"secret": 1}, "b": {"secret": 2}, "secret": 3}, {"a": {"secret": "***"}, "b": {"secret": "***"}, "secret": 3}),
        (("a.b.c", "d"), [{"a": {"b": {"c": 1}}}, [{"d": 1}]], [{"a": {"b": {"c": "***"}}}, [{"d": "***"}]]),
        (("a.b",), {"a": "no object", "b": 1}, {"a": "no object", "b": 1}),
    ],
)
def test_fields_are_masked_and_nothing_else(fields, body, masked):
    handler, lines = logged(*fields)
    frame = json.dumps(body).encode()
    assert handler.handle(frame, CONTEXT) is PASS
    (line,) = map(json.loads, lines)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "listener": "in",
        "connection": "0-1-7",
        "peer": "127.0.0.1:5",
        "principal": "User:a",
        "direction": "request",
        "sequence": 3,
        "bytes": len(frame),
        "body": masked,
    }


@each_of(
    "frame",
    [
        b"",
        b"\xff\xfe\x00",
        b"password=geheim",
        b'{"password": "geheim"',
        b'"geheim"',
        b"7",
        b"[" * 100_000,
        b"[" + b"1" * 5000 + b"]",
        b"{" + b" " * 5000 + b"}",
    ],
)
def test_of_a_frame_that_is_not_json_only_the_length_is_logged(frame):
    handler, lines = logged("password", most=200_000 if len(frame) == 100_000 else 5001)
    for forward in ("unchanged", "masked"):
        handler.forward = forward
        assert handler.handle(frame, CONTEXT) is PASS
    for line in map(json.loads, lines):
        assert line["bytes"] == len(frame)
        assert "body" not in line
    assert "geheim" not in "".join(lines)


def test_the_upstream_gets_the_masked_body_when_it_is_asked_for():
    handler, _ = logged("password", forward="masked")
    assert handler.handle('{"name": "Zürich \\ud800", "password": 1}'.encode(), CONTEXT) == Replace(
        b'{"name":"Z\xc3\xbcrich \xed\xa0\x80","password":"***"}'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["password", "a", "B"]) | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.binary(max_size=20))
def test_any_body_is_logged_without_its_secrets(body, noise):
    handler, lines = logged("password", "a.b")
    secret = {"password": "geheim", "A": {"b": "geheim"}, "more": body}
    assert handler.handle(json.dumps(secret).encode(), CONTEXT) is PASS
    assert handler.handle(noise, CONTEXT) is PASS
    assert len(lines) == 2
    assert "geheim" not in lines[0]


def test_it_runs_in_a_handler_process():
    with HandlerProcess(stderr=subprocess.PIPE) as process:
        ready = process.serve({"in": "mask_field:requests"}, [FOLDER])
        assert ready["handlers"]["in"] == {"directions": ["request"], "description": "Logs requests, with fields masked."}
        processor = process.processor()
        processor.hello()
        processor.open(1, upstream=True)
        processor.send(request(1, 0, b'{"token": "geheim", "n": 1}'), request(1, 1, b"\xff"))
        assert [reply.action for reply in processor.replies(2)] == ["pass", "pass"]
        assert process.process.stderr is not None
        first, second = (json.loads(process.process.stderr.readline()) for _ in range(2))
        assert (first["body"], first["sequence"], second["sequence"]) == ({"token": "***", "n": 1}, 0, 1)
        assert "body" not in second
