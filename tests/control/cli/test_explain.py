"""``framegate explain`` as it is typed."""

import json

from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.control.configuration.manual import entries
from tests.fakes.cli import Cli
from tests.fakes.plane import channel_row


def explain(*words: str) -> Result:
    return CliRunner().invoke(main, ["explain", *words])


def test_a_key_is_explained_in_full() -> None:
    result = explain("listeners[0].timeouts.idle")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "listeners[].timeouts.idle"
    for wanted in ("type     a time", "range    0 to 30d", "default  10m", "change   by a restart", "example  idle: 10m"):
        assert wanted in lines
    assert any(line.startswith("Danger: if this is shorter than") for line in lines)


def test_a_section_lists_its_keys_and_nothing_lists_the_sections() -> None:
    tls = explain("listeners.tls").stdout
    assert tls.startswith("listeners[].tls\n")
    assert "  certificate      PEM file with the certificate chain, leaf first.\n" in tls
    top = [line.split()[0] for line in explain().stdout.splitlines()]
    assert top == [item.path for name, item in entries().items() if "." not in name]


def test_every_key_can_be_explained_and_fits_a_terminal_but_for_tables() -> None:
    wide = {}
    for name in entries():
        result = explain(name)
        assert result.exit_code == 0, name
        wide[name] = [line for line in result.stdout.splitlines() if len(line) > 80 and not line.startswith("    ")]
    assert {name: lines for name, lines in wide.items() if any(len(word) < 40 for line in lines for word in line.split())} == {}


def test_as_json_it_is_one_document() -> None:
    found = json.loads(explain("drain.accept", "-o", "json").stdout)
    assert (found["path"], found["default"], found["words"]) == ("drain.accept", "until_stop", ["refuse", "until_stop"])
    assert [item["path"] for item in json.loads(explain("-o", "json").stdout)][:2] == ["node", "zone"]


def test_an_unknown_key_ends_with_3_and_names_those_near_it() -> None:
    result = explain("listeners.max_recieve_size")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "framegate: there is no key listeners.max_recieve_size; similar keys: listeners[].max_receive_size, upstreams[].max_receive_size, "
        "listeners[].tls.max_version\n"
    )
    assert explain("qqqq").stderr == "framegate: there is no key qqqq; framegate explain lists all sections\n"
    assert explain("no\x1b[31mkey\n").stderr.startswith("framegate: there is no key no\\x1b[31mkey\\n; ")


def test_a_channel_and_a_listener_are_explained_in_sentences_and_as_json(cli: Cli) -> None:
    cli.plane.add(channel_row("0-1-7", unsent={"request": 0, "response": 3 << 20}))
    channel, wait = cli("explain", "0-1-7").stdout.splitlines()
    assert channel.startswith("channel 0-1-7: 10.0.0.9:51000 (CN=client; client id billing-7; apache-kafka-java 3.7.0) on listener kafka")
    assert wait.startswith("- client 10.0.0.9:51000 (channel 0-1-7, client id billing-7) has not taken 3MiB of answers")
    for words in (("listener=kafka",), ("kafka",)):
        assert cli("explain", *words).stdout.splitlines()[:2] == ["listener kafka: 1 channel open, 1 of them waits", wait]
    assert [item["kind"] for item in cli.json("explain", "kafka")["waits"]] == ["KIND_CLIENT", "KIND_FAILED_ENDPOINT"]
    assert cli("explain", "telemetry").stdout.startswith("telemetry\n"), "a key is one, whatever runs"
    for words, text in ((("0-1-9",), "0-1-9"), (("listener=none",), "none"), (("none",), "there is no key none")):
        missing = cli("explain", *words)
        assert (missing.exit_code, text in missing.stderr) == (3, True), words


def test_keys_are_completed() -> None:
    found = ShellComplete(main, {}, "framegate", "_X").get_completions(["explain"], "tap.b")
    assert [item.value for item in found] == ["tap.budget"]
