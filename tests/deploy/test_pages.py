"""README and the pages in ``deploy/docs``: their commands run as printed, their links lead somewhere, and they are short.

A block that begins with three backticks and ``console`` is run. A line that begins with ``$ `` is a command; it goes on over lines that end with a
backslash, and to the end of a here-document (``<<'EOF'``). The lines below a command are the output that is expected, with ``...`` for any text; a
command without such lines may print what it likes. A command that ends with an error fails the test. The blocks of a page run in one shell, in their
order, in an empty folder; what they started is ended afterwards. Blocks with another word (``sh``) need a cluster, Kafka or Java, and are not run.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "deploy" / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FIRST = {"README.md", "getting-started.md"}  # in `make test`; the other pages in `make test-all`
WITHOUT_COMMANDS = {"architecture.md", "contributing.md", "glossary.md", "performance.md"}
MOST_SECONDS = 120
MARK = "--- the command ended with"


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of the blocks to run, each with the output that is expected."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines = iter(block.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                assert found, f"output without a command: {line}"
                found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
                continue
            command = [line[2:]]
            end = re.search(r"<<'(\w+)'", line)
            while command[-1].endswith("\\") if end is None else command[-1] != end[1]:
                command.append(next(lines))
            found.append(("\n".join(command), ""))
    return found


def matches(expected: str, output: str) -> bool:
    """Whether the output is that which is expected; blanks at the ends of lines, and around all of it, do not count."""
    texts = [re.sub(r" +$", "", text.strip(), flags=re.MULTILINE) for text in (expected, output)]
    pattern = re.escape(texts[0]).replace(re.escape("..."), ".*")
    return not texts[0] or re.fullmatch(pattern, texts[1], re.DOTALL) is not None


def end_all(group: int) -> None:
    """End the processes of a group, and wait for them."""
    for number, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
        until = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
            while time.monotonic() < until:
                os.killpg(group, 0)
                time.sleep(0.05)


def run(steps: list[tuple[str, str]], folder: Path) -> list[tuple[int, str]]:
    """Run the commands in one shell; gives the exit status and the output of each that ended."""
    script = "".join(f"{command}\nprintf '\\n{MARK} %d\\n' $?\n" for command, _ in steps)
    home = folder / "home"
    home.mkdir()
    (folder / "page").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FRAMEGATE_", "OTEL_"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home), "COLUMNS": "120", "LC_ALL": "C.UTF-8"}
    (folder / "script").write_text(script)
    with (folder / "output").open("w") as output:
        command = ["bash", str(folder / "script")]
        process = subprocess.Popen(
            command, cwd=folder / "page", env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(MOST_SECONDS)
        end_all(process.pid)
        process.wait(10)
    pieces = re.split(rf"\n?{MARK} (\d+)\n", (folder / "output").read_text())
    return [(int(status), text) for text, status in zip(pieces[::2], pieces[1::2], strict=False)]


def logs(folder: Path) -> str:
    """The ends of what the programs of a page have written."""
    return "".join(f"\n{path.name}:\n{path.read_text()[-2000:]}" for path in sorted((folder / "page").glob("*.log")))


@pytest.mark.slow
@pytest.mark.timeout(MOST_SECONDS + 60)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=() if page.name in FIRST else pytest.mark.extended) for page in PAGES if commands(page.read_text())],
)
def test_the_commands_of_a_page_work_as_printed(page: Path, tmp_path: Path) -> None:
    steps = commands(page.read_text())
    done = run(steps, tmp_path)
    for (command, expected), (status, output) in zip(steps, done, strict=False):
        assert status == 0, f"$ {command}\n{output}{logs(tmp_path)}"
        assert matches(expected, output), f"$ {command}\n{output}\n... where the page says\n{expected}"
    assert len(done) == len(steps), f"this did not end within {MOST_SECONDS} s: {steps[len(done)][0]}"


def test_each_page_that_can_has_commands_that_are_run() -> None:
    assert {page.name for page in PAGES if not commands(page.read_text())} <= WITHOUT_COMMANDS


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found} | set(
        re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text())
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        there = (page.parent / path) if path else page
        if target.startswith("https://"):
            continue
        if not there.exists() or (anchor and anchor not in headings(there)):
            broken.append(target)
    assert not broken


def test_every_page_is_linked_from_readme() -> None:
    linked = set(re.findall(r"\]\(deploy/docs/([^)#]+)", (ROOT / "README.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")}


def test_paths_of_pages_that_programs_print_exist() -> None:
    sources = [
        path for folder in ("proxy", "control", "deploy") for kind in ("*.py", "*.md", "*.yaml", "*.service") for path in (ROOT / folder).rglob(kind)
    ]
    named = {name for path in sources for name in re.findall(r"deploy/docs/([a-z-]+\.md)", path.read_text(encoding="utf-8"))}
    assert named <= {page.name for page in PAGES}
