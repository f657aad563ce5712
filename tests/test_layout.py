"""The rooms: every module with logic has its test module, every package says what is in it, and the top holds nothing unexpected."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOP = {"proto", "proxy", "control", "tests", "deploy"}
ELSEWHERE = {
    "proxy/network/lanes.py": "tests/proxy/relay/test_lanes.py",  # the relay opens them
    **{f"control/demo/{name}.py": "tests/integration/test_demo.py" for name in ("generator", "steering", "steps")},
    **{f"control/steering/{name}.py": "tests/control/steering/test_problems.py" for name in ("alerts", "failures")},
}


def modules() -> list[Path]:
    found = [path.relative_to(ROOT) for package in ("proxy", "control") for path in (ROOT / package).rglob("*.py")]
    return sorted(path for path in found if not path.is_relative_to("control/v1"))


def is_constant(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def has_logic(path: Path) -> bool:
    """Whether a function of the module does anything: more than a docstring, `...` or `raise`."""
    functions = (node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(not isinstance(line, ast.Raise | ast.Pass) and not is_constant(line) for function in functions for line in function.body)


def test_every_module_with_logic_has_a_test_module() -> None:
    plain = [path for path in modules() if path.name not in ("__init__.py", "__main__.py") and has_logic(path)]
    expected = {path: ELSEWHERE.get(str(path), f"tests/{path.parent}/test_{path.name}") for path in plain}
    assert [str(path) for path, test in expected.items() if not (ROOT / test).exists()] == []


def test_every_package_says_what_is_in_it() -> None:
    folders = {path.parent for path in modules() if path.is_relative_to("proxy") or path.is_relative_to("control")}
    silent = [
        str(folder)
        for folder in sorted(folders)
        if not (ROOT / folder / "__init__.py").exists() or not ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
    ]
    assert silent == []


def test_every_module_opens_with_a_docstring() -> None:
    assert [str(path) for path in modules() if not ast.get_docstring(ast.parse((ROOT / path).read_text()))] == []


def test_only_the_fakes_are_a_package_among_the_tests() -> None:
    packages = [path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("__init__.py")]
    assert [str(path) for path in packages if path.parts[0] not in ("fakes", "benchmarks")] == []


def test_the_top_holds_the_rooms_and_nothing_else() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert folders - TOP <= {"build", "dist", "var", "__pycache__"}
