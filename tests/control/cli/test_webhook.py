"""The command `webhook`: what it needs, and how it ends without it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "either --certificate or --name is needed"),
        ("--name a --certificate b --key c", 2, "either --certificate or --name is needed"),
        ("--certificate b", 2, "--certificate and --key belong together"),
        ("--name a --config missing.yaml", 2, "does not exist"),
        ("--name a --on-fault x", 2, "is not one of"),
        ("--name a --memory 47MiB", 2, "must be at least 48MiB"),
        ("--name a", 1, "framegate: needs a pod with a service account"),
    ],
)
def test_what_is_missing_is_said(words: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = CliRunner().invoke(main, ["webhook", *words.split()])
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
