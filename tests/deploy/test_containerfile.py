"""The Containerfile's rules: two stages, not root, exec form, compiled or nothing, no Spark."""

import json
import re
from pathlib import Path

CONTAINERFILE = Path(__file__).resolve().parents[2] / "deploy" / "Containerfile"
INSTRUCTIONS = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "LABEL", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


def parse(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments, comments left out and continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


ALL = parse(CONTAINERFILE.read_text())
LAST_STAGE = ALL[max(index for index, (word, _) in enumerate(ALL) if word == "FROM") :]


def of(word: str, instructions: list[tuple[str, str]]) -> list[str]:
    return [rest for name, rest in instructions if name == word]


def test_every_instruction_is_known() -> None:
    assert {word for word, _ in ALL} <= INSTRUCTIONS


def test_two_stages_share_one_base_and_the_last_takes_only_what_was_built() -> None:
    assert of("FROM", ALL) == ["${BASE} AS build", "${BASE} AS run"]
    assert of("COPY", LAST_STAGE) == ["--from=build /opt/framegate /opt/framegate"]


def test_it_runs_as_nobody_in_particular() -> None:
    assert of("USER", LAST_STAGE) == ["10001:10001"]
    words = [word for word, _ in LAST_STAGE]
    assert "RUN" not in words[words.index("USER") :]


def test_commands_are_in_exec_form() -> None:
    assert json.loads(of("ENTRYPOINT", LAST_STAGE)[0]) == ["/opt/framegate/bin/framegate"]
    assert json.loads(of("CMD", LAST_STAGE)[0]) == ["serve", "--config", "/etc/framegate/framegate.yaml"]
    assert all(isinstance(json.loads(run), list) for run in of("RUN", LAST_STAGE))


def test_the_wheel_is_compiled_or_the_build_fails() -> None:
    build = ALL[: len(ALL) - len(LAST_STAGE)]
    words = [f"{word} {rest}" for word, rest in build]
    assert words.index("ENV FRAMEGATE_REQUIRE_COMPILED=1") < next(index for index, word in enumerate(words) if "build --wheel" in word)
    assert any("gcc" in run for run in of("RUN", build))


def test_no_spark_no_secrets_no_compiler_in_the_image() -> None:
    text = "\n".join(f"{word} {rest}" for word, rest in ALL)
    assert not re.search(r"spark|openjdk|java", text, re.IGNORECASE)
    assert not re.search(r"password|secret|\.key|\.pem", text, re.IGNORECASE)
    assert not any("gcc" in run for run in of("RUN", LAST_STAGE))
    assert of("STOPSIGNAL", LAST_STAGE) == ["SIGTERM"]


def test_what_is_copied_is_in_the_repository() -> None:
    root = CONTAINERFILE.parents[1]
    sources = [source for copy in of("COPY", ALL) if not copy.startswith("--from") for source in copy.split()[:-1]]
    assert [source for source in sources if not (root / source).exists()] == []
