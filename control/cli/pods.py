"""Commands over many pods: ``framegate --kube -l app=orders status``.

``kubectl exec`` runs the same command line in the framegate container of each pod, with ``--output json``, so it speaks to the admin socket there and
needs the rights of ``kubectl exec`` alone. The answers become one table with a column POD, made by the code that prints the answer of one framegate,
or one JSON document: ``pods`` has each pod's JSON, ``failed`` what went wrong, both by the name of the pod.
"""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click

from framegate.control.cli.client import EXIT_UNAVAILABLE
from framegate.control.cli.options import EXIT_INTERRUPTED, EXIT_NOT_FOUND
from framegate.control.cli.output import counted, first_of, print_json, print_note, print_table

if TYPE_CHECKING:
    import asyncio

EXIT_PARTIAL: Final = 6  # Some pods gave no good answer, and the others did
AT_ONCE: Final = 16  # Calls of kubectl that run at the same time
LONGEST_ANSWER: Final = 64 << 20  # bytes of output that are kept of a pod
_META: Final = "framegate.pods"
_SHOWN: Final = 10
_UNKNOWN: Final = "; the change may have taken effect"
_LONGEST_REASON: Final = 300
_KUBECTL_SAYS: Final = re.compile(r"command terminated with (non-zero )?exit code")
_FORM_ERRORS: Final = (AttributeError, KeyError, IndexError, TypeError, ValueError)


class Fleet(NamedTuple):
    """Which pods, and the command line that runs in each. ``namespace``, ``context``: None for kubectl's own; ``timeout_s``: for each pod."""

    selector: str
    namespace: str | None
    context: str | None
    timeout_s: float
    line: tuple[str, ...]

    def kubectl(self, *words: str) -> list[str]:
        """A command line of kubectl."""
        scope = {"--context": self.context, "--namespace": self.namespace}
        return ["kubectl", *(f"{name}={value}" for name, value in scope.items() if value is not None), *words]


class Table(NamedTuple):
    """How answers are shown. ``rows``: the rows of one pod, from its JSON; ``patience_s``: what the command itself may take, beside the timeout;
    ``changes``: the command changes something.
    """

    columns: Sequence[str]
    rows: Callable[[Any], Sequence[Sequence[Any]]]
    patience_s: float = 0.0
    changes: bool = False


class _Answer(NamedTuple):
    """Of one pod. ``document``: None if there is none; ``failure``: empty if all is well; ``notes``: what it said besides."""

    document: Any
    failure: str
    notes: Sequence[str] = ()


def choose(ctx: click.Context, fleet: Fleet) -> None:
    """Run the command of a context in these pods, instead of here."""
    ctx.meta[_META] = fleet


def over_pods(table: Callable[..., Table], question: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command run over many pods. ``table``: from the options of the command; raises UsageError for one that is not possible over pods.
    ``question``: asked before a command that changes something, unless ``--yes``, which the command then has, is given.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            sure = values.pop("yes", False) or not question
            fleet: Fleet | None = click.get_current_context().meta.get(_META)
            if fleet is None:
                function(**values)
            else:
                _run(fleet, table(**values), "" if sure else question, values["output"])

        return click.option("--yes", is_flag=True, help="With --kube: do not ask.")(command) if question else command

    return decorate


def _run(fleet: Fleet, table: Table, question: str, output: str) -> None:
    import asyncio

    names, failed = _pods(fleet)
    if not names and not failed:
        print_note(f"no pods match {fleet.selector}")
        sys.exit(EXIT_NOT_FOUND)
    if question and names:
        _confirm(question, names)
    try:
        answers = dict(zip(names, asyncio.run(_ask_all(fleet, names, table)), strict=True))
    except KeyboardInterrupt:
        print_note("interrupted" + (_UNKNOWN if table.changes else ""))
        sys.exit(EXIT_INTERRUPTED)
    _print(answers, failed, table, output)


def _print(answers: dict[str, _Answer], failed: dict[str, str], table: Table, output: str) -> None:
    """Print the answers, and what went wrong in which pods; exits if something did. ``failed``: the pods that were not asked, and why."""
    rows: list[Sequence[Any]] = []
    for name, answer in answers.items():
        try:
            rows += [(name, *row) for row in table.rows(answer.document)] if answer.document is not None else ()
        except Exception as error:  # a pod may say anything
            words = f"its answer cannot be read; it is of another version of framegate: {type(error).__name__}: {error}"
            answers[name] = answer._replace(document=None, failure=words[:_LONGEST_REASON])
    failed |= {name: answer.failure for name, answer in answers.items() if answer.failure}
    good = {name: answer.document for name, answer in answers.items() if answer.document is not None}
    if output == "json":
        print_json({"pods": good, "failed": dict(sorted(failed.items()))})
    else:
        print_table(("POD", *table.columns), rows)
        if good and not rows:
            print_note(f"nothing to show: {counted(len(good), 'pod')} answered")
    for name in sorted({*answers, *failed}):
        said = answers[name].notes if name in answers and name not in failed else [failed[name]]
        for line in said:
            print_note(f"{name}: {line}")
    if failed:
        print_note(f"{len(failed)} of {counted(len({*answers, *failed}), 'pod')} failed")
        sys.exit(EXIT_PARTIAL if good else EXIT_UNAVAILABLE)


def _pods(fleet: Fleet) -> tuple[list[str], dict[str, str]]:
    """The pods in which framegate runs, and why it does not in the others."""
    from framegate.control.kubernetes.sidecar import CONTAINER

    words = ("get", "pods", f"--selector={fleet.selector}", "--output=json", f"--request-timeout={fleet.timeout_s:g}s")
    try:
        done = subprocess.run(fleet.kubectl(*words), stdout=subprocess.PIPE, check=False)
    except OSError as error:
        _no_pods(f"kubectl cannot be started: {error.strerror}")
    if done.returncode:
        _no_pods(f"kubectl get pods ended with exit code {done.returncode}")
    try:
        found = sorted((pod["metadata"]["name"], _fault(pod, CONTAINER)) for pod in json.loads(done.stdout)["items"])
    except _FORM_ERRORS:
        _no_pods("kubectl get pods printed no list of pods")
    return [name for name, fault in found if not fault], {name: fault for name, fault in found if fault}


def _no_pods(reason: str) -> NoReturn:
    print_note(reason)
    sys.exit(EXIT_UNAVAILABLE)


def _fault(pod: dict[str, Any], container: str) -> str:
    """Why a command cannot run in the container of a pod; empty if it can."""
    spec, status = pod["spec"], pod.get("status", {})
    if container not in [item["name"] for key in ("initContainers", "containers") for item in spec.get(key, ())]:
        return f"it has no container {container}"
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    state: dict[str, Any] = next((item.get("state", {}) for item in statuses if item["name"] == container), {})
    if "running" in state:
        return ""
    reasons = [f"{kind}: {facts.get('reason', 'no reason given')}" for kind, facts in state.items()]
    return f"its container {container} does not run ({', '.join(reasons) or 'not started'}; the pod is {status.get('phase', 'Unknown')})"


def _confirm(question: str, names: Sequence[str]) -> None:
    if not (sys.stdin and sys.stdin.isatty()):
        raise click.UsageError("standard input is no terminal at which to ask: give --yes")
    text = f"{question} in {counted(len(names), 'pod')} ({first_of(names, _SHOWN)})?"
    if not click.confirm(text, err=True):
        print_note("nothing was changed")
        sys.exit(1)


async def _ask_all(fleet: Fleet, names: Sequence[str], table: Table) -> list[_Answer]:
    import asyncio

    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(name: str) -> _Answer:
        async with slots:
            return await _ask(fleet, name, table)

    return await asyncio.gather(*map(ask, names))


async def _ask(fleet: Fleet, name: str, table: Table) -> _Answer:
    """Run the command line in one pod. kubectl and what it started are killed when the time is over."""
    import asyncio

    from framegate.control.kubernetes.sidecar import CONTAINER

    timeout_s = fleet.timeout_s + table.patience_s
    words = fleet.kubectl("exec", f"pod/{name}", f"--container={CONTAINER}", "--", "framegate", *fleet.line, "--output", "json")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*words, **pipes, start_new_session=True))  # type: ignore[arg-type]
    try:
        process = await asyncio.shield(starting)  # cancelled in the middle, asyncio would leave behind what kubectl has started
        async with asyncio.timeout(timeout_s):
            out, said, code = await _until_it_ends(process)
    except TimeoutError:
        await _kill(starting)
        return _Answer(None, f"it did not answer within {timeout_s:g} s" + (_UNKNOWN if table.changes else ""))
    except OSError as error:
        return _Answer(None, f"kubectl cannot be started: {error.strerror}")
    except BaseException:
        await _kill(starting)
        raise
    return _answer(out, said.decode("utf-8", "replace"), code)


async def _kill(starting: "asyncio.Future[asyncio.subprocess.Process]") -> None:
    process = await starting
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await _until_it_ends(process)


async def _until_it_ends(process: "asyncio.subprocess.Process") -> tuple[bytes, bytes, int]:
    """Its output, what it said, and its exit code. A process whose output is not read does not end."""
    import asyncio

    assert process.stdout is not None, "it is a pipe"
    assert process.stderr is not None, "it is a pipe"
    return await asyncio.gather(_read(process.stdout), _read(process.stderr), process.wait())


async def _read(stream: "asyncio.StreamReader") -> bytes:
    """All of a stream, of which the first ``LONGEST_ANSWER`` bytes are kept."""
    data = bytearray()
    while chunk := await stream.read(1 << 16):
        data += chunk[: LONGEST_ANSWER - len(data)]
    return bytes(data)


def _answer(out: bytes, said: str, code: int) -> _Answer:
    """Judge what kubectl printed. A command that gives JSON and fails, as ``status`` of a framegate that starts, is shown and is a failure."""
    lines = [line.removeprefix("framegate: ") for line in said.splitlines() if line.strip() and not _KUBECTL_SAYS.match(line)]
    try:
        document = json.loads(out)
    except ValueError:
        document = None
    if code:
        if lines and lines[0].startswith("Usage:"):  # this command line is good here
            errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
            return _Answer(None, f"its framegate is of another version, which does not take this command line: {'; '.join(errors)}")
        words = "; ".join(lines)[:_LONGEST_REASON]
        return _Answer(document, f"{words} (exit code {code})" if words else f"exit code {code}")
    if document is None:
        text = out[:60].decode("utf-8", "replace")
        return _Answer(None, f"it printed no JSON: {text!r}" if out else "it printed nothing")
    return _Answer(document, "", lines)
