"""Requests and answers never wait for each other: upstreams that read a whole frame and then answer, and the least pool that may be configured."""

import pytest

from tests.fakes.crowd import KIB, MIB, Crowd

FRAME = 640 * KIB
pytestmark = pytest.mark.slow  # some 20 MiB each way through the interpreter, and TLS


def exchange(crowd: Crowd, couples: int, frames: int, size: int = FRAME) -> None:
    """Clients send all their requests and read; each upstream reads a request, and nothing more until its answer is out."""
    for _ in range(couples):
        couple = crowd.join(buffer=64 * KIB)
        couple.upstream.answers = True
        couple.client.give(*[size] * frames)
    crowd.settle(lambda: all(couple.done and couple.client.frames == frames for couple in crowd.couples), turns=8000, step_ns=1_000_000)
    assert not crowd.rows
    assert crowd.pool.used == 0
    assert crowd.pool.waiting == 0


@pytest.mark.parametrize("answers", ["answers_whole", "answers_cut"])
@pytest.mark.parametrize("requests", ["requests_whole", "requests_cut"])
def test_requests_and_answers_do_not_wait_for_each_other(make_crowd, requests, answers):
    whole = {"cut_requests": requests == "requests_cut", "cut_answers": answers == "answers_cut"}
    exchange(make_crowd(pool=FRAME, limit=FRAME - 4, answer_limit=FRAME - 4, stall_s=30, **whole), 8, 3)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut_through"])
def test_small_frames_do_not_either(make_crowd, cut):
    """The pool is smaller than what the pipelines hold; frames of 64 KiB."""
    exchange(make_crowd(pool=256 * KIB, limit=64 * KIB, answer_limit=64 * KIB, cut_answers=cut), 12, 20, 64 * KIB)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut_through"])
def test_the_circle_turns_beside_hostages(make_crowd, cut):
    """The pool is full of what others do not read before it begins; they are closed as far as they must be."""
    crowd = make_crowd(pool=MIB, limit=MIB - 4, answer_limit=MIB - 4, cut_answers=cut, stall_s=30)
    hostages = [crowd.join(buffer=16 * KIB) for _ in range(20)]
    for index, couple in enumerate(hostages):
        (couple.upstream if index % 2 else couple.client).reads = 0
        (couple.client if index % 2 else couple.upstream).give(*[64 * KIB] * 20)
    crowd.rest()
    assert crowd.pool.used >= MIB // 2
    good = [crowd.join(buffer=64 * KIB) for _ in range(6)]
    for couple in good:
        couple.upstream.answers = True
        couple.client.give(*[FRAME] * 3)
    crowd.settle(lambda: all(couple.done and couple.client.frames == 3 for couple in good), turns=8000, step_ns=2_000_000)
    assert {row["id"] for row in crowd.rows} <= {couple.id for couple in hostages}
