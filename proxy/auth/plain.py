"""PLAIN (RFC 4616): ``[authzid] NUL user NUL password``, in one message."""

from typing import Final

from framegate.proxy.auth.auth_requests import Accepted, AuthResponse, CheckPassword, Refused, Secret, WantSecret
from framegate.proxy.auth.mechanism import Ask, ClientMechanism, Next, RefusalError, Reply, ServerMechanism, expect

PLAIN: Final = "PLAIN"


class PlainServer(ServerMechanism):
    """The server's side, with Kafka's texts: a wrong password and an unknown user get the same text."""

    def __init__(self) -> None:
        super().__init__()
        self._authorization: str = ""

    def evaluate(self, token: bytes) -> Next:
        try:
            fields = token.decode().split("\0")
        except UnicodeDecodeError:
            raise RefusalError("the message is not UTF-8") from None
        if len(fields) != 3:
            raise RefusalError(f"the message has {len(fields)} fields where 3 belong")
        self._authorization, self.user, password = fields
        if not self.user:
            raise _told("Authentication failed: username not specified")
        if not password:
            raise _told("Authentication failed: password not specified")
        return Ask(CheckPassword(self.user, password))

    def resume(self, answer: AuthResponse) -> Next:
        if isinstance(answer, Refused):
            raise RefusalError(answer.reason, told="Authentication failed: Invalid username or password")
        accepted = expect(Accepted, answer)
        if self._authorization not in ("", self.user):
            raise _told("Authentication failed: Client requested an authorization id that is different from username")
        self.principal, self.lifetime_ms, self.complete = accepted.principal, accepted.lifetime_ms, True
        return Reply(b"")


class PlainClient(ClientMechanism):
    """The client's side. It keeps the password until the server has answered."""

    def __init__(self, user: str, credential: str) -> None:
        super().__init__()
        self._user: Final = user
        self._credential: Final = credential

    def begin(self) -> Next:
        return Ask(WantSecret(self._credential))

    def resume(self, answer: AuthResponse) -> Next:
        password = expect(Secret, answer).text
        self.secrets = (password.encode(),)
        return Reply(f"\0{self._user}\0{password}".encode())

    def evaluate(self, token: bytes) -> None:
        if token:
            raise RefusalError(f"{len(token)} bytes where the server has nothing to say")
        self.complete = True


def _told(text: str) -> RefusalError:
    return RefusalError(text, told=text)
