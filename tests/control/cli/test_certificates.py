"""``framegate certificates``."""

import dataclasses

from framegate.control.status import ReloadOutcome
from tests.fakes.cli import Cli
from tests.fakes.plane import certificate


def test_list_shows_each_certificate_and_what_is_wrong_with_its_files(cli: Cli) -> None:
    assert "no listener or upstream uses TLS" in cli("certificates", "list").stderr
    cli.plane.certificates = [certificate("listener/kafka"), dataclasses.replace(certificate("upstream/brokers"), ends=5.0, error="it is bad")]
    _, first, second = cli("certificates", "list").stdout.splitlines()
    assert first.split()[:3] == ["listener/kafka", "certificate", "/tls.crt"]
    assert ("f" * 16 in first, "f" * 17 in first) == (True, False)
    assert ("expired" in second, "it is bad" in second) == (True, True)
    assert cli.json("certificates", "list")[0]["fingerprint"] == "f" * 64
    assert "has expired: upstream/brokers, 1970-01-01 00:00:05 UTC" in cli("status").stdout


def test_reload_shows_what_became_of_each_and_fails_when_one_is_refused(cli: Cli) -> None:
    assert "no files are watched" in cli("certificates", "reload").stderr
    cli.plane.outcomes = [ReloadOutcome(owner="listener/kafka", kind="tls", result="replaced")]
    done = cli("certificates", "reload")
    assert (done.exit_code, done.stdout.splitlines()[1].split()) == (0, ["listener/kafka", "tls", "replaced", "-", "-"])
    cli.plane.outcomes = [ReloadOutcome(owner="listener/kafka", kind="tls", result="refused", file="/tls.key", reason="is bad")]
    done = cli("certificates", "reload")
    assert (done.exit_code, "/tls.key" in done.stdout, "is bad" in done.stdout) == (1, True, True)
    assert cli.plane.asked.count(("reload",)) == 3
