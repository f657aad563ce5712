"""A real handler process: its first words, its handlers' start and stop, and how it ends whatever they do."""

import signal
import subprocess
import time

import pytest

from proxy.server.protocol import WIRE_VERSION
from tests.fakes.handler_process import HandlerProcess, request


def test_an_echo_from_the_first_words_to_the_last():
    with HandlerProcess() as process:
        ready = process.serve({"in": "proxy.handler.echo:echo"})
        facts = {"ordered_pipelining": True, "directions": ["request", "response"]}
        assert ready["pid"] == process.process.pid
        assert ready["handlers"] == {"in": {**facts, "description": "Answers every frame with itself."}}
        processor = process.processor()
        assert processor.hello() == {"wire": 1, "slot": 3, "handlers": {"in": facts}}
        processor.open(7)
        processor.send(*(request(7, index, b"frame %d" % index) for index in range(64)))
        replies = processor.replies(64)
        assert [(reply.action, reply.sequence, reply.body) for reply in replies] == [("answer", index, b"frame %d" % index) for index in range(64)]
        assert all(before.ended_ns <= after.began_ns <= after.ended_ns for before, after in zip(replies, replies[1:], strict=False))
        while process.message("beat")["handled"] < 64:
            pass
        process.tell({"type": "stop"})
        assert process.wait() == 0
        assert processor.ended()
