"""The names of the package: each can be imported, is listed, and is known to type checkers."""

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shoal
import shoal.farm
import shoal.testing


@pytest.mark.parametrize("name", shoal.__all__)
def test_each_name_can_be_imported(name: str) -> None:
    assert getattr(shoal, name) is not None
    assert name in dir(shoal)


def type_checking_imports(package: ModuleType) -> list[ast.ImportFrom]:
    """Return what a package with lazy names imports for type checkers and import-linter."""
    assert package.__file__
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return [node for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]


def test_type_checkers_see_the_same_names() -> None:
    seen = {alias.name for node in type_checking_imports(shoal) for alias in node.names}
    assert seen | {"DAGTask"} == set(shoal.__all__)


@pytest.mark.parametrize("package", [shoal, shoal.farm, shoal.testing])
def test_import_linter_sees_the_modules_that_names_are_loaded_from(package: Any) -> None:
    seen = {
        (node.module, alias.name) for node in type_checking_imports(package) for alias in node.names
    }
    table = package._WHERE.items()
    assert seen == {(f"{package.__name__}.{module}", name) for module, names in table
                    for name in names}  # fmt: skip


@pytest.mark.parametrize("package", [shoal, shoal.farm, shoal.testing])
def test_names_are_listed_in_order(package: Any) -> None:
    names = package.__all__
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if name[0].isupper() and name not in constants]
    others = [name for name in names if name[0].islower()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(others)]
    assert len(set(names)) == len(names)


def test_a_planner_can_be_written_with_names_of_the_package_alone() -> None:
    assert {"Conditions", "Placement", "Plan", "Planner", "TaskId", "WorkerId", "Workflow"} <= set(
        shoal.__all__
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Plans'"):
        shoal.Plans  # noqa: B018
