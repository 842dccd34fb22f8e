"""The names of the package: each can be imported, is listed, and is what type checkers see."""

import ast
from pathlib import Path

import pytest

import shoal


@pytest.mark.parametrize("name", shoal.__all__)
def test_each_name_can_be_imported(name: str) -> None:
    assert getattr(shoal, name) is not None
    assert name in dir(shoal)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(shoal.__file__).read_text(encoding="utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {alias.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom)
            for alias in node.names}  # fmt: skip
    assert seen | {"DAGTask"} == set(shoal.__all__)


def test_a_planner_can_be_written_with_names_of_the_package_alone() -> None:
    assert {"Conditions", "Placement", "Plan", "Planner", "TaskId", "WorkerId", "Workflow"} <= set(
        shoal.__all__
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Plans'"):
        shoal.Plans  # noqa: B018
