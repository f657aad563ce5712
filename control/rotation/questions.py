"""The validator process: what control asks of it. It reads configurations, and checks new certificates (``validator``), so that neither the memory
for that nor a malicious file is in the control process.

It reads questions on standard input and writes answers (``control.rotation.validator_process`` has the format) until the end of the input, or until
it was not asked for a minute. ``cryptography`` is imported with the first question that needs it.
"""

import json
import resource
import select
import sys
from typing import Any, BinaryIO, Final

from framegate.control.configuration.child import load_row

_IDLE_S: Final = 60.0
_MOST_MEMORY: Final = 1 << 30  # bytes of addresses: the files of all stores are 16 MiB at most, twice, and some copies of that


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What is to be said of a configuration (``load``, see ``framegate.control.configuration.child.load_row``), or of certificates (all others, see
    ``framegate.control.rotation.validator.answer``).
    """
    if "load" in question:
        return load_row(question["load"])
    from framegate.control.rotation import validator

    return validator.answer(question)


def serve(questions: BinaryIO, answers: BinaryIO, idle_s: float = _IDLE_S) -> None:
    """Answer questions, which come one at a time, until the end of the input, or until none came for so long."""
    while select.select([questions], [], [], idle_s)[0] and len(size := questions.read(4)) == 4:
        told = json.dumps(answer(json.loads(questions.read(int.from_bytes(size, "big"))))).encode("ascii")
        answers.write(len(told).to_bytes(4, "big") + told)
        answers.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    serve(sys.stdin.buffer, sys.stdout.buffer)
