"""docs/workflows.md describes the workflows correctly."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from evaluating import levels
from shoal.workflow import Workflow

PAGE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text()
SMALL: dict[str, dict[str, Any]] = {
    "tree_reduction": {},
    "matrix_multiplication": {"size": 8},
    "text_analysis": {"lines": 5},
    "image_transformation": {"width": 8, "height": 8},
    "word_count": {"lines": 5},
    "fan_out": {},
}


def build(workflow: str) -> Any:
    return getattr(import_module(f"shoal.experiments.{workflow}"), workflow)


def test_every_workflow_is_documented_with_its_command() -> None:
    commands = re.findall(r"^shoal run shoal\.experiments\.(\w+):(\w+)$", PAGE, re.MULTILINE)
    assert commands == [(workflow, workflow) for workflow in SMALL]


@pytest.mark.parametrize("workflow", SMALL)
def test_the_documented_shape_is_right(workflow: str) -> None:
    built = Workflow.of(build(workflow)(**SMALL[workflow]))
    level = list(levels(built).values())
    assert f"| `{workflow}` | {len(built)} | {1 + max(level)} | {level.count(0)} |" in PAGE


@pytest.mark.parametrize("workflow", SMALL)
def test_every_parameter_has_a_default_and_is_documented(workflow: str) -> None:
    table = PAGE.partition("| workflow | parameter |")[2]
    rows = re.search(rf"^\| `{workflow}` (\|.*\n(?:\| \|.*\n)*)", table, re.MULTILINE)
    assert rows is not None
    told = re.findall(r"`(\w+)`", " ".join(row.split("|")[-4] for row in rows[1].splitlines()))
    parameters = inspect.signature(build(workflow)).parameters.values()
    assert told == [parameter.name for parameter in parameters]
    assert all(parameter.default is not parameter.empty for parameter in parameters)
