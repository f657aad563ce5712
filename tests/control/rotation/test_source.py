import asyncio

import pytest

from framegate.control.files import Contents
from framegate.control.rotation.identity_files import TokenKeys
from framegate.control.rotation.source import Refusal, RefusedError, Source


def test_each_is_made_anew_and_one_that_cannot_be_leaves_the_others() -> None:
    made: dict[str, Contents] = {}

    def load(owner: str, contents: Contents) -> None:
        if contents["f"] == b"bad":
            raise RefusedError("f", "line 1: is no user")
        made[owner] = contents

    refused = asyncio.run(TokenKeys(load, asyncio.Lock()).take({"a": {"f": b"1"}, "b": {"f": b"bad"}, "c": {"f": b"2"}}))
    assert refused == {"b": Refusal("f", "line 1: is no user")}
    assert made == {"a": {"f": b"1"}, "c": {"f": b"2"}}
    assert (str(Refusal("f", "is bad")), str(Refusal("", "is bad"))) == ("f is bad", "is bad")


def test_a_kind_that_has_no_metric_is_our_bug() -> None:
    reloader = TokenKeys(lambda owner, contents: None, asyncio.Lock())
    with pytest.raises(AssertionError, match="no kind of file"):
        Source(owner="a", kind="other", paths=("f",), reloader=reloader, in_force=b"")
