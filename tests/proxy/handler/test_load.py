"""From a name to a handler."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from framegate.proxy.handler.load import LoadedHandler, LoadError, error_line, extend_path, load

SOURCE = '''
"""A module of handlers."""
import functools

def plain(frame, context):
    """Does it.

    Well.
    """

async def slow(frame, context): ...

def three(frame, context, more): ...

class Plain:
    directions = "request"
    def handle(self, frame, context): ...

class Slow:
    async def handle(self, frame, context): ...

class Callable:
    async def __call__(self, frame, context): ...

class Outer:
    class Inner(Plain):
        """Within."""

class NeedsMore:
    def __init__(self, more): ...

class Raises:
    def __init__(self):
        raise ValueError("no!")

class Sideways(Plain):
    directions = ("sideways",)

class Nowhere(Plain):
    directions = ()

class BadStart(Plain):
    start = 5

class NoHandle:
    handle = 5

made = Plain()
partial = functools.partial(slow)
of_c = max
number = 5
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "handlers_of_load.py").write_text(SOURCE)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith("framegate."):  # a second copy of ours would confuse the tests that follow
            del sys.modules[name]


def found(name: str) -> LoadedHandler:
    return load(f"handlers_of_load:{name}")


@pytest.mark.parametrize(
    ("name", "is_async"),
    [
        ("plain", False),
        ("slow", True),
        ("Plain", False),
        ("Slow", True),
        ("Callable", True),
        ("Outer.Inner", False),
        ("made", False),
        ("partial", True),
    ],
)
def test_functions_classes_and_objects_are_handlers(folder, name, is_async):
    handler = found(name)
    assert (handler.name, handler.is_async) == (f"handlers_of_load:{name}", is_async)
    result = handler.handle(b"", None)
    if is_async:
        result.close()


def test_what_a_handler_says_of_itself_and_which_object_it_is(folder):
    directions = {name: found(name).facts()["directions"] for name in ("plain", "Slow", "Plain")}
    assert directions == {"plain": ["request", "response"], "Slow": ["request", "response"], "Plain": ["request"]}
    assert [found(name).description for name in ("plain", "Outer.Inner", "slow")] == ["Does it.", "Within.", ""]
    assert found("Plain").target is not found("Plain").target, "a class is made for each listener"
    assert found("made").target is found("made").target
    assert found("of_c").handle is max, "what does not say what it takes is a handler"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("handlers_of_load", "a handler is named package.module:name"),
        ("handlers_of_load:", "a handler is named package.module:name"),
        (":plain", "a handler is named package.module:name"),
        ("handlers_of_load:nobody", "module 'handlers_of_load' has no attribute 'nobody'"),
        ("handlers_of_load:Outer.nobody", "type object 'Outer' has no attribute 'nobody'"),
        ("missing.handlers:plain", "there is no module missing on the path"),
        ("handlers_of_load.more:plain", "there is no module handlers_of_load.more on the path"),
        ("handlers_of_load:three", "cannot be called with a frame and a context: missing a required argument: 'more'"),
        ("handlers_of_load:NeedsMore", "TypeError: NeedsMore.__init__() missing 1 required positional argument: 'more'"),
        ("handlers_of_load:Raises", "ValueError: no! ("),
        ("handlers_of_load:Sideways", "has directions ('sideways',), which are not of ('request', 'response')"),
        ("handlers_of_load:Nowhere", "has directions ()"),
        ("handlers_of_load:BadStart", "has a start that cannot be called"),
        ("handlers_of_load:NoHandle", "is neither a function nor has it a handle to call"),
        ("handlers_of_load:number", "is neither a function nor has it a handle to call"),
    ],
)
def test_what_is_no_handler_is_told(folder, name, text):
    with pytest.raises(LoadError) as caught:
        load(name)
    assert str(caught.value).startswith(name)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import json\nimport not_there\n", "ModuleNotFoundError: No module named 'not_there' (FILE:2)"),
        ("\n\nraise ValueError('x')\n", "ValueError: x (FILE:3)"),
        ("import sys\nsys.exit('bye')\n", "SystemExit: bye (FILE:2)"),
        ("def (:\n", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_cannot_be_imported_says_where(folder, source, text):
    path = folder / "broken_of_load.py"
    path.write_text(source)
    with pytest.raises(LoadError) as caught:
        load("broken_of_load:h")
    assert text.replace("FILE", str(path)) in str(caught.value)


def test_folders_are_appended_once_and_in_order(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/first"])
    extend_path(["/b", "/a", "/first"])
    extend_path(["/a"])
    assert sys.path == ["/first", "/b", "/a"]


def test_an_error_in_one_line_names_the_last_line_of_code():
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        functools.partial(fails)()
    line = fails.__code__.co_firstlineno + 1
    assert error_line(caught.value) == f"KeyError: 'x' ({Path(__file__)}:{line})"
    assert error_line(ValueError("y")) == "ValueError: y"


def test_the_old_name_is_accepted_unless_a_package_has_it(folder):
    (folder / "old.py").write_text("from proxy.handler import handler, PASS\n\n@handler()\ndef handle(frame, context):\n    return PASS\n")
    (folder / "taken").mkdir()
    (folder / "taken" / "proxy.py").touch()
    code = f"""
import subprocess
import sys
from framegate.proxy.handler.load import LoadError, load
sys.path[:0] = [{str(folder)!r}, *sys.argv[1:]]
try:
    print(load("old:handle").name, load("proxy.handler.echo:echo").name)
except LoadError as error:
    print(error)
"""
    said = [
        subprocess.run([sys.executable, "-P", "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False).stdout
        for words in ([], [str(folder / "taken")])
    ]
    assert said[0] == "old:handle proxy.handler.echo:echo\n"
    assert "'proxy' is not a package" in said[1]
