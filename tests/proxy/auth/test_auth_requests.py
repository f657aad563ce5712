"""framegate.proxy.auth.auth_requests: a request is completed once. Secrets are in no repr."""

from framegate.proxy.auth.auth_requests import Accepted, CheckPassword, CheckToken, PendingAuth, Refused, ScramCredential, ScramKeys, Secret
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.proxy.network.conftest import Alarm


def test_a_request_is_completed_and_wakes_once_and_not_after_it_was_cancelled() -> None:
    alarm = Alarm(FakeClock())
    pending_auth = PendingAuth(CheckToken("t"), alarm)
    pending_auth.complete(Accepted("a"))
    pending_auth.complete(Refused("too late"))
    assert (pending_auth.answer, alarm.woken) == (Accepted("a"), 1)
    pending_auth.cancel()
    assert not pending_auth.is_cancelled, "it was answered"
    alarm = Alarm(FakeClock())
    pending_auth = PendingAuth(CheckToken("t"), alarm)
    pending_auth.cancel()
    pending_auth.cancel()
    pending_auth.complete(Accepted("a"))
    assert (pending_auth.answer, pending_auth.is_cancelled, alarm.woken) == (None, True, 0)


@each_of(
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
