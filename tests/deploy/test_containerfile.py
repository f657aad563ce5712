"""The Containerfile's rules: the sidecar is made from nothing but what is copied, not root, exec form, compiled or nothing, locked, no Spark."""

import fnmatch
import json
import re
from pathlib import Path

from tests.fakes import deploying
from tests.fakes.cases import each_of

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
INSTRUCTIONS = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "LABEL", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
IMAGES = ("framegate", "spark")


def parse(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments, comments left out and continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


ALL = parse(CONTAINERFILE.read_text())


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, by its name; its FROM is the first."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in ALL:
        if word == "FROM":
            name = rest.partition(" AS ")[2]
        found.setdefault(name, []).append((word, rest))
    return found


STAGES = stages()


def of(word: str, instructions: list[tuple[str, str]]) -> list[str]:
    return [rest for name, rest in instructions if name == word]


def test_every_instruction_is_known_and_every_stage_has_a_name() -> None:
    assert {word for word, _ in ALL} <= INSTRUCTIONS
    assert all(" AS " in rest for rest in of("FROM", ALL))


def test_only_one_image_is_named_from_outside_and_it_can_be_replaced() -> None:
    (base,) = STAGES[""]
    assert base == ("ARG", "BASE=docker.io/library/debian:trixie-slim")
    origins = {rest.partition(" AS ")[0] for rest in of("FROM", ALL)}
    assert origins - set(STAGES) == {"${BASE}", "scratch"}


@each_of("image", IMAGES)
def test_it_runs_framegate_in_exec_form_as_an_ordinary_user_and_ends_on_sigterm(image: str) -> None:
    assert of("USER", STAGES[image]) == ["10001:10001"]
    assert of("STOPSIGNAL", STAGES[image]) == ["SIGTERM"]
    assert json.loads(of("ENTRYPOINT", STAGES[image])[0]) == ["/opt/framegate/bin/framegate"]
    assert isinstance(json.loads(of("CMD", STAGES[image])[0]), list)


def test_the_wheel_is_compiled_or_the_build_fails() -> None:
    words = [f"{word} {rest}" for word, rest in STAGES["environment"]]
    demanded = next(index for index, word in enumerate(words) if "FRAMEGATE_REQUIRE_COMPILED=1" in word)
    assert demanded < next(index for index, word in enumerate(words) if "pip wheel" in word)
    assert any("--ahead /compiled" in run for run in of("RUN", STAGES["compiled"]))


def test_the_hot_path_is_compiled_again_only_when_it_or_the_project_changed() -> None:
    sources = {source for copy in of("COPY", STAGES["compiled"]) for source in copy.split()[:-1]}
    assert sources == {"pyproject.toml", "deploy/hatch_build.py", "proxy"}


def test_everything_from_an_index_is_locked_with_hashes() -> None:
    commands = [command for run in of("RUN", ALL) for command in run.split("&&") if re.search(r"/pip .*(install|wheel)", command)]
    assert len(commands) == 6
    assert [command for command in commands if "--require-hashes" not in command and "--no-index" not in command] == []


def test_settings_of_a_machine_are_secrets_and_never_copied() -> None:
    fetching = [run for run in of("RUN", ALL) if "--require-hashes" in run]
    assert len(fetching) == 3
    assert all("--mount=type=secret,id=pip.conf" in run and "--mount=type=secret,id=ca.crt" in run for run in fetching)
    assert not re.search(r"index-url|trusted-host|password", CONTAINERFILE.read_text())


def test_every_stage_that_writes_files_has_the_time_of_the_files() -> None:
    for name in ("compiled", "environment", "root", "spark-root"):
        assert any(rest.startswith("SOURCE_DATE_EPOCH=") for rest in of("ARG", STAGES[name])), name
    assert of("ARG", STAGES["root"])[0] == f"SOURCE_DATE_EPOCH={deploying.module('image').EPOCH}"


def test_no_spark_in_the_sidecar() -> None:
    ancestors = ("tools", "compiled", "environment", "root", "framegate")
    assert not re.search(r"spark|openjdk", str([STAGES[name] for name in ancestors]), re.IGNORECASE)
    assert any("openjdk" in run for run in of("RUN", STAGES["spark-root"]))


def test_what_is_copied_is_in_the_repository_and_let_through() -> None:
    let_through = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [source for copy in of("COPY", ALL) if not copy.startswith("--from") for source in copy.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if not any(fnmatch.fnmatch(source, f"{name}*") for name in let_through)] == []
    assert [name for name in let_through if not (ROOT / name).exists()] == []
