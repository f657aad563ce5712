"""What Kafka's own client library makes of messages: one Java process for many of them."""

import subprocess
from pathlib import Path

from tests.demo import broker

PROGRAM = Path(__file__).with_name("KafkaClients.java")


def ask(questions: list[str]) -> list[str]:
    """An answer for each question; see ``KafkaClients.java``."""
    command = broker.java_command(broker.prepare())
    done = subprocess.run([*command, str(PROGRAM)], input="\n".join(questions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(questions), done.stderr
    return answers


def reencoded(answers: list[tuple[bytes, int, int]]) -> list[str]:
    """Answers (body, key, version) as Kafka writes what it has read, in hex, without unknown tagged fields; or ``failed: …``."""
    return ask([f"answer {body.hex()} {key} {version}" for body, key, version in answers])


def refusals(requests: list[tuple[bytes, int, str]]) -> list[str]:
    """The answer, in hex, by which Kafka refuses each request (body, error code, message; if empty, the error's own); or ``none``."""
    return ask([f"refuse {body.hex()} {code} {message}".rstrip() for body, code, message in requests])
