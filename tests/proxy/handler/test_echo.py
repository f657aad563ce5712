"""The echo handler."""

from framegate.proxy.handler import Context
from framegate.proxy.handler.echo import echo
from framegate.proxy.handler.load import load


def test_every_frame_is_its_own_answer():
    assert echo(b"frame", Context()) == b"frame"
    assert load("framegate.proxy.handler.echo:echo").facts() == {"directions": ["request", "response"]}
