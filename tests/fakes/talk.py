"""A client that asks and an upstream that answers, over a pair of a ``World``, turn by turn in the world's own time."""

import contextlib
import socket
import struct
from collections.abc import Callable

from tests.fakes.kafka_frames import answer, request
from tests.fakes.world import World, frame

TURN_NS = 20_000_000
READ = 1 << 20
OWN = {False: 4, True: 8}  # where in a frame its number stands, by whether it is a Kafka request


def _whole(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole frames at the beginning of some bytes, and the rest."""
    frames = []
    while len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">i", data)[0]:
        end = 4 + struct.unpack_from(">i", data)[0]
        frames.append(data[:end])
        data = data[end:]
    return frames, data


class Talk:
    """Questions are numbered from 1, and their answers as they are.

    The client ends in order: it asks nothing more, and closes, once it sees the end of the stream.

    Args:
        window: questions that the client leaves unanswered before it waits.
        burst: it asks so many in one turn at most.
        delay_ns: between a question and its answer.
        size: bytes of each question, and of each answer, besides its number.
        reads: whether the upstream reads at all.
        each_turn: is called in each turn.
    """

    def __init__(
        self,
        world: World,
        *,
        window: int = 1,
        burst: int = 1 << 30,
        delay_ns: int = 0,
        size: int = 100,
        reads: bool = True,
        each_turn: Callable[[], object] = lambda: None,
    ) -> None:
        self.client, self.upstream, self.pair = world.pair()
        for sock in (self.client, self.upstream):
            sock.setblocking(False)
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what it sends is on its way at once, also while answers are held
        self.asked = 0  # questions that went out whole
        # served, answered: numbers that came to the upstream, and whose answers came to the client
        self.served: list[int] = []
        self.answered: list[int] = []
        self.rest = b""  # of the upstream: what came of a question that is not whole
        self.ended = False  # the client has seen the end of the stream; ``failure``: or an error in its place
        self.failure: OSError | None = None
        self.reads = reads  # see the arguments; ``hears``: whether the client reads
        self.hears = True
        self._world = world
        self._each_turn = each_turn
        self._kafka = world.route.kafka
        self._window, self._burst = window, burst
        self._delay_ns = delay_ns
        self._body = bytes(size)
        self.frame_size = len(self._question(1))  # bytes of a question, header counted
        self._begun = 0  # questions that were made
        self._asking = b""
        self._replying = b""
        self._answer_rest = b""
        self._due: list[tuple[int, int]] = []
        self._upstream_ended = False

    def turn(self) -> None:
        self._be_client()
        self._world.selector.poll(0)
        self._be_upstream()
        self._world.selector.poll(1)  # ms: who is idle gives the kernel time, which does not go by the world's clock
        self._each_turn()
        self._world.clock.ns += TURN_NS

    def turns(self, seconds: float) -> None:
        for _ in range(int(seconds * 1_000_000_000 / TURN_NS)):
            self.turn()

    def until_over(self, seconds: float) -> None:
        """Go on until the pair is closed."""
        for _ in range(int(seconds * 1_000_000_000 / TURN_NS)):
            if self._world.rows:
                return
            self.turn()
        raise AssertionError(f"it is not over; asked {self.asked}, served {len(self.served)}, answered {len(self.answered)}")

    def _be_client(self) -> None:
        if self.ended or self.failure is not None:
            return
        try:
            while self.hears and not self.ended:
                data = self.client.recv(READ)
                self.ended = not data
                self._hear(data)
        except BlockingIOError:
            pass
        except OSError as error:
            self.failure = error
        if self.ended:
            self.client.close()
        elif self.failure is None:
            self._ask()

    def _hear(self, data: bytes) -> None:
        frames, self._answer_rest = _whole(self._answer_rest + data)
        self.answered += [struct.unpack_from(">i", item, 4)[0] for item in frames]

    def _question(self, number: int) -> bytes:
        return request(3, 9, number, self._body) if self._kafka else frame(struct.pack(">i", number) + self._body)

    def _ask(self) -> None:
        open_questions = self._begun - len(self.answered)
        for _ in range(min(self._window - open_questions, self._burst)):
            if len(self._asking) > READ:
                break
            self._begun += 1
            self._asking += self._question(self._begun)
        if self._asking:
            try:
                self._asking = self._asking[self.client.send(self._asking) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self.failure = error
        self.asked = self._begun - -(-len(self._asking) // self.frame_size)

    def _be_upstream(self) -> None:
        if self._upstream_ended:
            return
        if self.reads:
            self._serve()
        while self._due and self._due[0][0] <= self._world.clock.ns:
            _, number = self._due.pop(0)
            self._replying += answer(number, self._body) if self._kafka else frame(struct.pack(">i", number) + self._body)
        with contextlib.suppress(BlockingIOError):
            self._replying = self._replying[self.upstream.send(self._replying) :]
        if self._upstream_ended and not self._due and not self._replying:
            self.upstream.close()

    def _serve(self) -> None:
        try:
            while not self._upstream_ended:
                data = self.upstream.recv(READ)
                self._upstream_ended = not data
                frames, self.rest = _whole(self.rest + data)
                for item in frames:
                    number = struct.unpack_from(">i", item, OWN[self._kafka])[0]
                    self.served.append(number)
                    self._due.append((self._world.clock.ns + self._delay_ns, number))
        except BlockingIOError:
            pass
