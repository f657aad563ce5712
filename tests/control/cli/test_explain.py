"""``framegate config explain`` as it is typed."""

import json

from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.control.configuration.manual import entries


def explain(*words: str) -> Result:
    return CliRunner().invoke(main, ["config", "explain", *words])


def test_a_key_is_explained_in_full() -> None:
    result = explain("listeners[0].timeouts.idle")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "listeners[].timeouts.idle"
    for wanted in (
        "type     a time",
        "range    0 to 30d",
        "default  10m",
        "change   while framegate runs, for new connections",
        "example  idle: 10m",
    ):
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
        "listeners[].limits.rules[].max_receive_size, listeners[].tls.max_version\n"
    )
    assert explain("qqqq").stderr == "framegate: there is no key qqqq; framegate config explain lists all sections\n"
    assert explain("no\x1b[31mkey\n").stderr.startswith("framegate: there is no key no\\x1b[31mkey\\n; ")


def test_keys_are_completed() -> None:
    found = ShellComplete(main, {}, "framegate", "_X").get_completions(["config", "explain"], "tap.b")
    assert [item.value for item in found] == ["tap.budget"]
