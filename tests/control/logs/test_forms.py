"""Rows as JSON and as text: what is in them is all there, and moves no terminal."""

import json
import os
import re
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from framegate.control.logs.catalog import EVENTS
from framegate.control.logs.forms import Form, JsonForm, TextForm, form_of
from tests.fakes.cases import each_of

MOMENT = "2026-11-23T11:04:09.123Z"
TEXT, JSON = TextForm(), JsonForm()
NASTY = {
    "line": "a\nb",
    "return": "a\r2026-11-23T11:04:09.123Z ERROR audit",
    "escape": "\033[2J\033[31mred",
    "bell": "\a\b\0",
    "delete": "\x7f",
    "c1": "\x9b31m",
    "next line": "\x85",
    "separators": "\u2028\u2029",
    "direction": "\u202egnp.exe\u2066",
    "zero width": "a\u200bb\ufeff",
    "surrogate": "\udc80",
    "private": "\ue000\U000f0000",
    "quotes": 'said "no" and \\',
    "pretends": "x level=error event=audit",
}


def test_a_row_of_text_has_time_level_event_meaning_and_then_its_fields() -> None:
    fields = {"slot": 1, "pid": 7, "generation": 2, "exit_code": -9, "reason": "died", "connections": 3}
    assert TEXT.row(MOMENT, "error", "processor_died", fields) == (
        f"{MOMENT} ERROR   processor_died A processor ended unexpectedly. slot=1 pid=7 generation=2 exit_code=-9 reason=died connections=3"
    )


def test_fields_of_objects_have_paths_and_empty_ones_are_left_out() -> None:
    fields = {
        "id": "0-1-2",
        "tls": None,
        "detail": "",
        "mutes": {},
        "muted": [],
        "frames": {"request": 0, "response": None},
        "lost": {"bytes": 5},
        "parts": [{"a": 1, "b": None}, "x y", True],
        "ok": False,
    }
    assert TEXT.row(MOMENT, "info", "strange", fields) == (
        f'{MOMENT} INFO    strange id=0-1-2 frames.request=0 lost.bytes=5 parts=[{{a=1 b=-}} "x y" true] ok=false'
    )


@each_of("nasty", NASTY.values())
def test_text_from_peers_never_breaks_the_line_of_its_row(nasty: str) -> None:
    rows = [
        TEXT.row(MOMENT, "info", "closed", {"peer": nasty, nasty: "key", "in": {nasty: [nasty, {nasty: nasty}]}}),
        TEXT.row(MOMENT, "info", nasty, {"x": 1}),
        TEXT.lines(MOMENT, "info", "closed", [json.dumps({"peer": nasty}), json.dumps({"peer": nasty}, ensure_ascii=False)], 0),
    ]
    assert [text.count("\n") for text in rows] == [0, 0, 1]
    for line in "\n".join(rows).split("\n"):
        assert line.isprintable(), ascii(line)
        assert line.startswith(f"{MOMENT} INFO    ")
        assert len(re.findall(r" level=error(?= |$)", re.sub(r'"(?:[^"\\]|\\.)*"', "", line))) == 0, "it pretends to be a field"


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.none(), st.integers(), st.lists(st.text()), st.dictionaries(st.text(), st.text()))))
def test_no_text_gets_out_of_its_line(fields: dict[str, Any]) -> None:
    line = TEXT.row(MOMENT, "info", "closed", fields)
    assert all(char == " " or unicodedata.category(char)[0] not in "CZ" for char in line), ascii(line)


@each_of("nasty", NASTY.values())
def test_json_keeps_every_text_and_is_one_line(nasty: str) -> None:
    line = JSON.row(MOMENT, "info", "closed", {"peer": nasty})
    assert json.loads(line) == {"time": MOMENT, "level": "info", "event": "closed", "peer": nasty}
    assert "\n" not in line


@each_of("form", [TEXT, JSON])
def test_rows_that_happened_together_are_lines_and_the_first_says_what_was_dropped(form: Form) -> None:
    first, second = form.lines(MOMENT, "debug", "opened", ['{"id": "0-1-2"}', '{"id": "0-1-3"}'], 7).split("\n")
    assert ("rows_dropped" in first, "rows_dropped" in second) == (True, False)
    assert "0-1-3" in second
    assert "7" in first.partition("rows_dropped")[2]
    assert form.lines(MOMENT, "debug", "opened", ['{"id": "0-1-3"}'], 0) == second


@each_of("text", ["{", "[1]", "5"])
def test_a_row_that_is_not_json_is_shown_as_it_is_and_others_follow(text: str) -> None:
    bad, good = TEXT.lines(MOMENT, "info", "closed", [text, '{"id": "0-1-3"}'], 0).split("\n")
    assert f"unreadable={text}" in bad.replace('"', "")
    assert good.endswith(" id=0-1-3")


@each_of("level", ["debug", "info", "warning", "error"])
def test_colour_is_of_the_level_and_of_nothing_else(level: str) -> None:
    plain, coloured = (TextForm(colour=colour).row(MOMENT, level, "stopping", {"reason": "\033[31m"}) for colour in (False, True))
    assert "\033" not in plain
    assert re.sub(r"\033\[\d+m", "", coloured) == plain
    assert coloured.count("\033") == 2


@each_of(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm"}, True)],
)
def test_text_has_colours_on_a_terminal_only_and_unless_no_color_is_set(environment: dict[str, str], coloured: bool) -> None:
    terminal, ours = os.openpty()
    reader, writer = os.pipe()
    try:
        assert ("\033" in form_of("text", ours, environment).row(MOMENT, "info", "stopped", {})) is coloured
        assert "\033" not in form_of("text", writer, environment).row(MOMENT, "info", "stopped", {})
        assert isinstance(form_of("json", ours, environment), JsonForm), "also at a terminal"
    finally:
        for descriptor in (terminal, ours, reader, writer):
            os.close(descriptor)


def test_what_an_event_says_fits_into_a_line() -> None:
    assert [name for name, event in EVENTS.items() if not event.says.isprintable() or not event.says.endswith(".") or len(event.says) > 90] == []
