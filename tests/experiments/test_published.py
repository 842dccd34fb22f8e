"""The published platform and workflows do what their sources say."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.experiments.grid import GRIDS, Cell, Grid, restricted
from shoal.experiments.platforms import PLATFORMS, platform_named
from shoal.experiments.trial import Trial, VirtualRunner, preview_of, run_trial
from shoal.metadata.samples import decode_samples

PUBLISHED = GRIDS["paper-000-as-published"]
TASKS = {"matrix": 17, "tree": 63, "text": 59, "image": 130}


def tried(platform: str, planner: str = "uniform", workflow: str = "matrix") -> Trial:
    grid = replace(PUBLISHED, platform=platform)
    cell = Cell(f"published-{workflow}", planner, 50)
    return run_trial(grid, cell, 0, 0, [], VirtualRunner(grid))


@pytest.mark.parametrize("name", TASKS)
def test_the_published_workflows_have_as_many_tasks_as_ours(name: str) -> None:
    shape = PUBLISHED.shape(f"published-{name}")
    assert len(shape.workflow) == TASKS[name]
    assert tuple(shape.workflow.calls) == shape.ids
    assert shape.tasks[0].seconds != GRIDS["paper-000"].shape(name).tasks[0].seconds


def test_the_published_text_is_a_constant_of_33_tasks() -> None:
    sizes = PUBLISHED.shape("published-text").constant_sizes
    assert len(sizes) == 33
    assert {nbytes for named in sizes.values() for nbytes in named.values()} == {41_500_000}


def test_nine_of_ten_published_starts_take_2_8_to_6_5_seconds() -> None:
    rng = random.Random(0)
    drawn = [PLATFORMS["published"].cold.drawn(rng) for _ in range(2000)]
    assert 0.85 < sum(2.8 <= seconds <= 6.5 for seconds in drawn) / 2000 < 0.95


def test_serialised_starts_lengthen_a_run_that_starts_many_workers() -> None:
    together = tried("published", "wukong", "tree").row
    serialised = tried("published-serialised", "wukong", "tree").row
    assert together.cold == serialised.cold == 32
    assert serialised.makespan > together.makespan + 5


def test_inputs_are_fetched_one_after_the_other_on_request() -> None:
    """The last task of the matrix takes the products of other workers."""
    at_once, each = (
        [s for s in tried(name).timeline.of_kind("fetch") if s.task and s.task.startswith("mul")]
        for name in ("published", "published-each-input")
    )
    assert len(at_once) == len(each) > 2
    assert sum(span.came_along for span in at_once) == len(at_once) - 1
    assert not any(span.came_along for span in each)
    each.sort(key=lambda span: span.start)
    assert all(a.end <= b.start for a, b in itertools.pairwise(each))
    assert all(span.seconds > PUBLISHED.latency for span in each)


def test_warming_the_image_workflow_in_groups_saves_seconds_and_almost_all_cold_starts() -> None:
    """Warming any one of the sixteen workers that start at the same moment gains nothing."""
    stage, cell = VirtualRunner(PUBLISHED), Cell("published-image", "uniform", 50)
    runs = [decode_samples(tried("published", "uniform", "image").block) for _ in range(2)]
    shape = stage.shape("published-image")
    plain, warmed = (
        preview_of(PUBLISHED, replace(cell, planner=planner), shape, runs, stage).timeline
        for planner in ("uniform", "uniform-optimised")
    )
    assert len(plain.of_kind("cold start")) > 10
    assert len(warmed.of_kind("cold start")) <= 2
    assert warmed.makespan < plain.makespan - 4


def test_a_grid_names_its_platform_in_the_record() -> None:
    assert PUBLISHED.settings()["platform"].startswith("published: ")
    assert GRIDS["paper-000"].settings()["platform"].startswith("measured: ")


def test_an_unknown_platform_is_an_error(tmp_path: Path) -> None:
    grid: Grid = replace(PUBLISHED, platform="publshed")
    with pytest.raises(UsageError, match="neither a platform"):
        restricted(grid)
    (tmp_path / "bad.json").write_text('{"launch": {"middle": 1}}')
    with pytest.raises(UsageError, match="nor a platform file"):
        platform_named(str(tmp_path / "bad.json"))
