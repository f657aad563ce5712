"""Clients that authenticate again between their requests (KIP-368), those whose time is over, and those who try what they may not."""

import contextlib
import socket
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.auth.server import CANNOT_TELL, MECHANISMS, SaslServerAuthenticators, SaslServerSettings
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.run import PART, PART_FIRST, PART_LAST, Run
from framegate.proxy.relay.session import ChannelFrames
from tests.fakes.cases import each_of
from tests.fakes.kafka_frames import answer, request
from tests.fakes.sasl_frames import SERVER_NONCE, handshake, handshake_answer, known_apis, plain_token, token, token_answer, versions
from tests.fakes.world import SECOND, SMALL, World, frame, reset
from tests.proxy.auth.conftest import AuthSource, usual_answer
from tests.proxy.conftest import builder
from tests.proxy.relay.conftest import assert_nothing_to_read, finish, passes

SESSION_S = 100


class Rig:
    """A listener whose clients are for 100 s who they say.

    Attributes:
        queue: whom their authenticator asks.
    """

    def __init__(self, *, session_s: int = SESSION_S, **options: Any) -> None:
        self.auth_source = AuthSource()
        self.counts: list[tuple[str, str]] = []
        settings = SaslServerSettings(MECHANISMS, session_s * 1000)
        factory = SaslServerAuthenticators(settings, self.auth_source, lambda: SERVER_NONCE, lambda *ended: self.counts.append(ended[:2]))
        self.world = World("kafka", authenticators=factory, **options)

    def login(self) -> tuple[socket.socket, socket.socket, Any]:
        """A client that has said who it is, two seconds ago; its upstream's socket, and the pair."""
        world = self.world
        client, pair = world.client()
        self.authenticate(client, lifetime_s=None)
        world.until(lambda: pair.state.value == "open")
        upstream, _ = world.server.accept()
        upstream.settimeout(2)
        world.sockets.append(upstream)
        world.pass_time(2)
        return client, upstream, pair

    def authenticate(self, client: socket.socket, lifetime_s: int | None = SESSION_S, correlation: int = 7) -> None:
        client.sendall(frame(handshake("PLAIN", correlation)))
        self.expect(client, handshake_answer(*MECHANISMS, correlation=correlation))
        client.sendall(frame(token(plain_token(), correlation + 1)))
        if lifetime_s is None:
            self.frame_of(client)
        else:
            self.expect(client, token_answer(b"", lifetime=lifetime_s * 1000, correlation=correlation + 1))

    def frame_of(self, sock: socket.socket) -> bytes:
        return self.world.read(sock, int.from_bytes(self.world.read(sock, 4), "big"))

    def expect(self, sock: socket.socket, *bodies: bytes) -> None:
        """These frames come next."""
        wanted = b"".join(map(frame, bodies))
        assert self.world.read(sock, len(wanted)) == wanted

    def ask(self, client: socket.socket, upstream: socket.socket, correlation: int) -> None:
        """A request that is answered."""
        asked, told = request(3, 9, correlation, b"q"), answer(correlation, b"a")
        passes(self.world, client, upstream, asked)
        passes(self.world, upstream, client, told)

    def end(self, client: socket.socket) -> tuple[str, str, str]:
        """What the row says, once it is closed."""
        with contextlib.suppress(ConnectionResetError):  # what it sent behind the frame that was refused is not read
            self.world.ended(client)
        self.world.pass_time(1.1)
        row = self.world.row
        return row["cause"], row["detail"], row["side"]

    def close(self) -> None:
        self.world.close()
        assert self.auth_source.open == []


@pytest.fixture
def make() -> Iterator[Any]:
    with builder(Rig) as build:
        yield build


@pytest.fixture
def rig(make: Any) -> Rig:
    return make()


def test_a_client_authenticates_again_and_nothing_of_it_reaches_the_upstream(rig: Rig) -> None:
    client, upstream, pair = rig.login()
    for round_ in range(5):
        rig.ask(client, upstream, round_)
        rig.authenticate(client)
        assert pair.client.channel.expires_ns == rig.world.clock.ns + SESSION_S * SECOND
        rig.world.pass_time(2)
    rig.ask(client, upstream, 99)
    assert rig.counts == [("PLAIN", "")] * 6
    client.close()
    rig.world.poll(5)
    finish(rig.world, upstream)
    row = rig.world.row
    assert (row["cause"], row["principal"], set(row["lost"].values())) == ("peer_closed", "user", {0})


def test_what_came_before_goes_on_and_the_answers_that_are_owed_leave_first(rig: Rig) -> None:
    client, upstream, _ = rig.login()
    asked = request(3, 9, 1, b"x") + request(3, 9, 2, b"y")
    client.sendall(asked + frame(handshake("PLAIN", 3)))
    assert rig.world.read(upstream, len(asked)) == asked
    rig.world.poll(5)
    assert len(rig.auth_source.asked) == 1
    upstream.sendall(answer(1, b"x"))
    rig.expect(client, answer(1, b"x")[4:])
    rig.world.poll(5)
    assert_nothing_to_read(client)
    upstream.sendall(answer(2, b"y"))
    rig.expect(client, answer(2, b"y")[4:], handshake_answer(*MECHANISMS, correlation=3))
    client.sendall(frame(token(plain_token(), 4)))
    rig.expect(client, token_answer(b"", lifetime=SESSION_S * 1000, correlation=4))
    rig.ask(client, upstream, 5)


def test_an_answer_that_passes_in_pieces_is_not_broken_into(make: Any) -> None:
    rig = make(cut_answers=True)
    client, upstream, _ = rig.login()
    asked = request(3, 9, 1, b"x")
    passes(rig.world, client, upstream, asked)
    told = answer(1, bytes(400_000))
    upstream.sendall(told[:300_000])
    got = rig.world.read(client, 200_000)
    client.sendall(frame(handshake("PLAIN", 3)))
    rig.world.poll(10)
    upstream.sendall(told[300_000:])
    got += rig.world.read(client, len(told) - len(got))
    assert got == told
    rig.expect(client, handshake_answer(*MECHANISMS, correlation=3))


def test_an_answer_of_control_that_comes_late_is_waited_for(rig: Rig) -> None:
    client, upstream, _ = rig.login()
    rig.auth_source.late = True
    client.sendall(frame(handshake("PLAIN")))
    rig.expect(client, handshake_answer(*MECHANISMS))
    client.sendall(frame(token(plain_token())))
    rig.world.until(lambda: rig.auth_source.open)
    rig.world.poll(5)
    rig.auth_source.settle()
    rig.expect(client, token_answer(b"", lifetime=SESSION_S * 1000))
    rig.auth_source.late = False
    rig.ask(client, upstream, 5)


def test_a_client_that_leaves_meanwhile_is_forgotten(rig: Rig) -> None:
    client, _, _ = rig.login()
    rig.auth_source.late = True
    client.sendall(frame(handshake("PLAIN")))
    rig.frame_of(client)
    client.sendall(frame(token(plain_token())))
    rig.world.until(lambda: rig.auth_source.open)
    reset(client)
    rig.world.poll(5)
    rig.world.pass_time(1.1)
    assert len(rig.auth_source.forgotten) == 1
    assert rig.world.row["cause"] == "peer_reset"


def test_the_first_request_behind_the_end_of_the_session_is_the_end(rig: Rig) -> None:
    client, upstream, _ = rig.login()
    rig.world.pass_time(SESSION_S - 2.5)
    rig.ask(client, upstream, 1)
    rig.world.pass_time(1)
    rig.world.poll(5)
    assert rig.world.rows == [], "nobody is closed for being silent"
    client.sendall(request(3, 9, 2, b"late"))
    assert rig.end(client) == ("session_expired", "a request of a client that did not authenticate again", "downstream")
    assert rig.world.ended(upstream) == b""


def test_a_session_that_is_over_can_still_be_begun_anew(rig: Rig) -> None:
    client, upstream, _ = rig.login()
    rig.world.pass_time(2 * SESSION_S)
    rig.authenticate(client)
    rig.ask(client, upstream, 1)


def test_a_token_that_ends_earlier_ends_the_session(rig: Rig) -> None:
    client, pair = rig.world.client()
    rig.auth_source.answer = lambda question: q.Accepted("user", 7000) if isinstance(question, q.CheckPassword) else usual_answer(question)
    rig.authenticate(client, lifetime_s=7)
    rig.world.until(lambda: pair.state.value == "open")
    rig.world.pass_time(8)
    client.sendall(request(3, 9, 2, b"late"))
    assert rig.end(client)[0] == "session_expired"


WRONG = q.Refused("wrong password")


@each_of(
    ("answered", "told", "detail"),
    [
        (WRONG, "Authentication failed: Invalid username or password", "PLAIN: wrong password"),
        (q.Accepted("other"), "Cannot change principals during re-authentication", "PLAIN: the client was 'user' and is 'other' now"),
        (q.Unavailable("a full line"), CANNOT_TELL, "PLAIN: cannot be checked: a full line"),
    ],
)
def test_a_failure_to_authenticate_again_is_told_after_the_delay(make: Any, answered: q.AuthResponse, told: str, detail: str) -> None:
    rig = make(refusal_ms=500)
    client, upstream, _ = rig.login()
    rig.auth_source.answer = lambda question: answered
    client.sendall(frame(handshake("PLAIN")))
    rig.frame_of(client)
    client.sendall(frame(token(plain_token())))
    rig.world.poll(5)
    assert_nothing_to_read(client)
    client.sendall(request(3, 9, 2, b"meanwhile"))
    rig.world.poll(5)
    rig.world.pass_time(0.5)
    refusal = rig.frame_of(client)
    assert refusal[5:7] == (b"\xff\xff" if told == CANNOT_TELL else b"\0\x3a")
    assert told.encode() in refusal
    upstream.close()
    assert rig.end(client) == ("auth_failed", detail, "downstream")
    assert rig.counts[1:] in ([("PLAIN", "credentials")], [("PLAIN", "unavailable")])


OTHER = request(3, 9, 2, b"x")[4:]
BEFORE_ITS_ANSWER = "requests behind SaslHandshake, before it is answered"


@pytest.mark.parametrize(
    ("steps", "detail"),  # frames that leave together; 0: an answer is read, a number: so many seconds pass
    [
        ([[token(plain_token())]], "SaslAuthenticate without SaslHandshake"),
        ([[handshake("PLAIN"), OTHER]], BEFORE_ITS_ANSWER),
        ([[handshake("PLAIN", version=0), plain_token()]], BEFORE_ITS_ANSWER),
        ([[OTHER, handshake("PLAIN"), handshake("PLAIN")]], BEFORE_ITS_ANSWER),
        (
            [[handshake("SCRAM-SHA-256")], 0, [token(b"n,,n=user,r=x")]],
            "SCRAM-SHA-256: the mechanism is not the one that the connection was made with",
        ),
        ([[handshake("PLAIN")], 0, [OTHER]], "a request of type 3 where SaslAuthenticate belongs"),
        ([[handshake("PLAIN")], 0, [OTHER, OTHER]], "requests of a client that authenticates again"),
        ([[handshake("PLAIN")], 0, [token(plain_token())], 0, 0.9, [handshake("PLAIN")]], "SaslHandshake within a second of the last"),
        ([[handshake("PLAIN")], 0, [token(bytes(600_000), version=1)]], "600"),
    ],
)
def test_what_kafkas_clients_do_not_send_is_refused(make: Any, steps: list[Any], detail: str) -> None:
    rig = make()
    client, upstream, _ = rig.login()
    for step in steps:
        if step == 0:
            rig.frame_of(client)
        elif isinstance(step, float):
            rig.world.pass_time(step)
        else:
            client.sendall(b"".join(map(frame, step)))
    cause, found, side = rig.end(client)
    assert (cause, side) == ("auth_failed", "downstream")
    assert found == detail or (detail == "600" and detail in found)
    assert b"PLAIN" not in rig.world.ended(upstream)


def test_a_second_handshake_while_answers_are_owed_is_refused(rig: Rig) -> None:
    client, upstream, _ = rig.login()
    asked = request(3, 9, 1, b"x")
    client.sendall(asked + frame(handshake("PLAIN")))
    rig.world.read(upstream, len(asked))
    client.sendall(frame(handshake("PLAIN")))
    assert rig.end(client)[1] == "a request while the one before it is not answered, of a client that authenticates again"


def test_a_handshake_where_sessions_do_not_end_is_refused(make: Any) -> None:
    rig = make(session_s=0)
    client, upstream, _ = rig.login()
    rig.world.pass_time(1_000_000)
    rig.ask(client, upstream, 1)
    client.sendall(frame(handshake("PLAIN")))
    assert rig.end(client)[:2] == ("auth_failed", "SaslHandshake of a client whose session does not end")


def test_each_client_keeps_its_own_mechanism(rig: Rig) -> None:
    client, upstream, pair = rig.login()
    other, its_pair = rig.world.client()
    for body in (handshake("OAUTHBEARER"), token(b"n,,\x01auth=Bearer good\x01\x01")):
        other.sendall(frame(body))
        rig.frame_of(other)
    rig.world.until(lambda: its_pair.state.value == "open")
    assert [item.client.channel.identity.mechanism for item in (pair, its_pair)] == ["PLAIN", "OAUTHBEARER"]
    rig.ask(client, upstream, 1)
    rig.authenticate(client)
    rig.ask(client, upstream, 2)


@pytest.mark.slow
@each_of("cuts", [False, True])
@each_of("delay_ms", [0, 1000])
def test_no_frame_of_sasl_is_forwarded_however_large_it_is_and_however_requests_pass(make: Any, cuts: bool, delay_ms: int) -> None:
    """With others before it and behind it; at the size from which a frame passes in pieces, one byte less and one more."""
    rig = make(cut_requests=cuts, refusal_ms=delay_ms)
    wrong = []
    for size in (SMALL - 5, SMALL - 4, SMALL - 3, 400_000):
        for begin in (token(b"", version=1)[:-4], handshake("PLAIN")[:-7]):
            for before, behind in ((b"", b""), (request(3, 9, 1, b"x"), b""), (b"", request(3, 9, 2, b"y"))):
                client, upstream, _ = rig.login()
                data = before + frame(begin + b"secret" * (size // 6) + b"s" * (size % 6 - len(begin))) + behind
                with contextlib.suppress(ConnectionError):
                    for start in range(0, len(data), 70_000):
                        client.sendall(data[start : start + 70_000])
                        rig.world.poll(2)
                rig.world.pass_time(2)
                got = rig.world.ended(upstream)
                rig.world.pass_time(1.1)
                row = rig.world.rows[-1]
                if got != before or row["cause"] != "auth_failed" or row["side"] != "downstream":
                    wrong.append((size, begin[:2], len(before), len(behind), len(got), row["cause"], row["detail"]))
                client.close()
    assert wrong == []


def test_a_frame_of_sasl_larger_than_a_piece_may_be_is_refused_by_its_size(make: Any) -> None:
    rig = make(cut_requests=True)
    client, _, _ = rig.login()
    client.sendall(frame(handshake("PLAIN") + bytes(SMALL - 3 - len(handshake("PLAIN")))))
    assert rig.end(client) == ("auth_failed", f"frame of {SMALL - 3} bytes where at most {SMALL - 4} are taken to authenticate", "downstream")


def test_a_piece_that_shortage_of_memory_makes_of_a_frame_of_sasl_goes_nowhere_and_neither_do_the_others(make: Any) -> None:
    rig = make(refusal_ms=1000)
    client, upstream, pair = rig.login()
    data = frame(handshake("PLAIN") + bytes(9000))
    for begin, end, part in ((0, 4096, PART | PART_FIRST), (4096, 8192, PART), (8192, len(data), PART | PART_LAST)):
        piece = data[begin:end]
        pair.client.received(Run(None, 0, piece, len(piece), len(piece), 1 if part & PART_LAST else 0, 0, part))
        assert pair.client.pipe_target() is None
    rig.world.pass_time(1)
    assert rig.end(client) == ("auth_failed", "a frame to authenticate with that passes in pieces, since memory is short", "downstream")
    assert rig.world.ended(upstream) == b""


def test_a_frame_that_began_within_the_session_ends_behind_it(make: Any) -> None:
    rig = make(cut_requests=True)
    client, upstream, _ = rig.login()
    asked = request(3, 9, 1, bytes(400_000))
    client.sendall(asked[:300_000])
    got = rig.world.read(upstream, 300_000)
    rig.world.pass_time(SESSION_S)
    client.sendall(asked[300_000:])
    assert got + rig.world.read(upstream, len(asked) - len(got)) == asked
    client.sendall(request(3, 9, 2, b"x"))
    assert rig.end(client)[0] == "session_expired"


def test_what_an_authenticator_gets_needs_no_room_at_the_upstream_and_goes_nowhere_else(rig: Rig) -> None:
    client, _, pair = rig.login()
    assert pair.client.pipe_target() is pair.upstream.channel.write_half
    client.sendall(frame(handshake("PLAIN")))
    rig.frame_of(client)
    assert pair.client.room_for() == (1 << 31, True)
    assert pair.client.pipe_target() is None
    client.sendall(frame(token(plain_token())))
    rig.frame_of(client)
    assert pair.client.pipe_target() is pair.upstream.channel.write_half


def test_a_frame_to_authenticate_with_is_judged_before_it_is_copied_and_booked_until_it_is_answered(rig: Rig) -> None:
    client, upstream, pair = rig.login()
    used = rig.world.pool.used
    client.sendall(request(3, 9, 1, b"x") + frame(handshake("PLAIN")))
    rig.world.read(upstream, len(request(3, 9, 1, b"x")))
    assert rig.world.pool.used == used + len(handshake("PLAIN")), "it waits for an answer that is owed"
    large = [frame(handshake("PLAIN") + bytes(8 << 20))[:9], bytes(8 << 20)]
    last = frame(handshake("PLAIN") + bytes(8 << 20))[9 + (8 << 20) :]
    run = Run([*large], 9 + (8 << 20), last, len(last), len(last), 1, 0)
    frames = ChannelFrames(pair.client.channel, rig.world.pool.common)
    tracemalloc.start()
    with pytest.raises(AuthenticationError, match="where at most 524288 are taken"):
        frames.put(run, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 65536
    upstream.sendall(answer(1, b"x"))
    rig.expect(client, answer(1, b"x")[4:], handshake_answer(*MECHANISMS))
    assert rig.world.pool.used == used
    rig.auth_source.late = True
    client.sendall(frame(token(plain_token())))
    rig.world.until(lambda: rig.auth_source.open)
    assert rig.world.pool.used == used + len(token(plain_token()))
    rig.auth_source.settle()
    rig.frame_of(client)
    assert rig.world.pool.used == used


def test_versions_may_be_asked_first_and_mean_nothing_later(rig: Rig) -> None:
    rig.auth_source.answer = lambda question: known_apis(ApiRange(3, 0, 12)) if isinstance(question, q.SupportedApis) else usual_answer(question)
    client, pair = rig.world.client()
    client.sendall(frame(versions(3)))
    rig.frame_of(client)
    rig.authenticate(client)
    rig.world.until(lambda: pair.state.value == "open")
    upstream, _ = rig.world.server.accept()
    upstream.settimeout(2)
    rig.world.sockets.append(upstream)
    client.sendall(frame(versions(3)))
    assert rig.frame_of(upstream) == versions(3), "of a client that is known it is the upstream's"
