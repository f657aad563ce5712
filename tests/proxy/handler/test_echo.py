"""The echo handler."""

from proxy.handler import Context
from proxy.handler.echo import echo
from proxy.handler.load import load


def test_every_frame_is_its_own_answer():
    assert echo(b"frame", Context()) == b"frame"


def test_several_of_a_connection_may_be_under_way():
    assert load("proxy.handler.echo:echo").facts() == {"directions": ["request", "response"]}
