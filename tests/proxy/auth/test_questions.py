"""proxy.auth.questions: an inquiry is settled once, and who has given up is not woken. Secrets are in no repr."""

import pytest

from proxy.auth.questions import Accepted, CheckPassword, CheckToken, Inquiry, Refused, ScramCredential, ScramKeys, Secret
from tests.fakes.clock import FakeClock
from tests.proxy.network.test_authenticator import Alarm


def test_the_first_answer_counts_and_wakes_once() -> None:
    alarm = Alarm(FakeClock())
    inquiry = Inquiry(CheckToken("t"), alarm)
    inquiry.settle(Accepted("a"))
    inquiry.settle(Refused("too late"))
    assert (inquiry.answer, alarm.woken) == (Accepted("a"), 1)
    inquiry.cancel()
    assert not inquiry.is_cancelled, "it was answered"


def test_who_has_given_up_is_not_woken() -> None:
    alarm = Alarm(FakeClock())
    inquiry = Inquiry(CheckToken("t"), alarm)
    inquiry.cancel()
    inquiry.cancel()
    inquiry.settle(Accepted("a"))
    assert (inquiry.answer, inquiry.is_cancelled, alarm.woken) == (None, True, 0)


@pytest.mark.parametrize(
    "item",
    [
        CheckPassword("user", "canary"),
        CheckToken("canary"),
        Secret("canary"),
        ScramKeys(b"canary", b"canary"),
        ScramCredential(b"salt", 4096, b"canary", b"canary"),
    ],
)
def test_a_secret_is_in_no_repr(item: object) -> None:
    assert "canary" not in repr(item)
