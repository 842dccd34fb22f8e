"""The walks through the code name files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "walks.md").read_text(encoding="utf-8")
STEPS = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", PAGE)
SCRIPTS = re.findall(r"`(storage/lua/[\w/]+\.lua)`", PAGE)


def names_in(path: Path) -> set[str]:
    """Return the functions, classes and methods that a module defines."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_there_are_walks() -> None:
    assert PAGE.count("\n## ") == 7
    assert len(STEPS) > 40


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_names_a_function_that_exists(file: str, name: str) -> None:
    assert name in names_in(ROOT / "src" / "shoal" / file)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_step_names_a_script_that_exists(script: str) -> None:
    assert (ROOT / "src" / "shoal" / script).is_file()
