"""The image transformation: its shape, each step, and the whole against the steps by hand."""

import time
from typing import Any

import numpy as np
import pytest

from evaluating import evaluated, shape
from shoal.errors import UsageError
from shoal.experiments.image_transformation import (
    Image,
    Tile,
    blur,
    combine,
    edges,
    generate_image,
    image_transformation,
    merge,
    normalise,
    pick,
    resize,
    sepia,
    sharpen,
    split,
)
from shoal.session import Session
from shoal.types import TaskId
from shoal.workflow import Workflow


@pytest.fixture(scope="module")
def image() -> Image:
    return generate_image(61, 42, seed=5)


@pytest.fixture
def tile() -> Tile:
    return np.random.default_rng(1).random((20, 30, 3), np.float32)


def by_hand(tile: Image) -> Image:
    pixels = tile.astype(np.float32) / np.float32(255)
    small = normalise.function(blur.function(resize.function(pixels)))
    return combine.function(sepia.function(small), sharpen.function(edges.function(pixels)))


def test_it_has_130_tasks_in_eight_levels() -> None:
    workflow = Workflow.of(image_transformation(width=8, height=8))
    assert len(workflow) == 130
    assert shape(workflow) == {
        (0, "split"): 1,
        (1, "pick"): 16,
        (2, "resize"): 16,
        (2, "edges"): 16,
        (3, "blur"): 16,
        (3, "sharpen"): 16,
        (4, "normalise"): 16,
        (5, "sepia"): 16,
        (6, "combine"): 16,
        (7, "merge"): 1,
    }


def test_both_branches_of_a_tile_begin_with_its_pick() -> None:
    workflow = Workflow.of(image_transformation(width=8, height=8))
    pick = TaskId("pick#3")
    assert workflow.upstream[pick] == (TaskId("split#0"),)
    assert {workflow.calls[task].task.name for task in workflow.downstream(pick)} == {
        "resize",
        "edges",
    }
    assert [len(sources) for sources in workflow.upstream.values()].count(2) == 16
    assert len(workflow.upstream[TaskId("merge#0")]) == 16


def test_the_result_equals_the_steps_done_by_hand(image: Image) -> None:
    found = evaluated(image_transformation(image, grid=3))
    assert found.shape == image.shape
    assert found.dtype == np.uint8
    for rows in np.array_split(np.arange(42), 3):
        for columns in np.array_split(np.arange(61), 3):
            where = np.ix_(rows, columns)
            np.testing.assert_array_equal(found[where], by_hand(image[where]))


def test_merge_undoes_split(image: Image) -> None:
    tiles = split.function(image, 4, 0.0)
    assert len(tiles) == 16
    np.testing.assert_array_equal(
        merge.function([tiles[i : i + 4] for i in range(0, 16, 4)]), image
    )


def test_pick_is_the_tile_in_floats_from_0_to_1() -> None:
    tiles = [np.zeros((1, 1, 3), np.uint8), np.full((1, 1, 3), 255, np.uint8)]
    assert [pick.function(tiles, i).tolist() for i in range(2)] == [[[[0] * 3]], [[[1] * 3]]]


def test_resize_by_half_is_the_mean_of_each_four_pixels(tile: Tile) -> None:
    expected = tile.reshape(10, 2, 15, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(resize.function(tile), expected, rtol=1e-5)


def test_blur_is_a_convolution_with_a_bell_curve_in_both_directions(tile: Tile) -> None:
    offsets = np.arange(-9, 10)
    bell = np.exp(-(offsets**2) / 18)
    kernel = np.outer(bell, bell) / bell.sum() ** 2
    padded = np.pad(tile, ((9, 9), (9, 9), (0, 0)), mode="edge")
    for y, x in ((0, 0), (10, 15), (19, 29), (3, 28)):
        expected = (padded[y : y + 19, x : x + 19] * kernel[..., None]).sum(axis=(0, 1))
        np.testing.assert_allclose(blur.function(tile)[y, x], expected, rtol=1e-5)


def test_normalise_stretches_each_colour_and_leaves_a_flat_one_alone(tile: Tile) -> None:
    dull = tile / 4 + np.float32(0.5)
    dull[..., 2] = 0.75
    found = normalise.function(dull)
    assert found.dtype == np.float32
    for channel in range(2):
        low, high = np.percentile(dull[..., channel], [1, 99])
        expected = np.clip((dull[..., channel] - low) / (high - low), 0, 1)
        np.testing.assert_allclose(found[..., channel], expected, atol=1e-5)
    assert (found[..., 2] == 0.75).all()


def test_sepia_is_brown_and_never_brighter_than_white() -> None:
    row = np.array([[[0, 0, 0], [0.5, 0.5, 0.5], [1, 1, 1], [0, 0, 1]]], np.float32)
    expected = [[[0, 0, 0], [0.6755, 0.6015, 0.4685], [1, 1, 0.937], [0.189, 0.168, 0.131]]]
    np.testing.assert_allclose(sepia.function(row), expected, rtol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_edges_are_where_the_brightness_changes(turned: bool) -> None:
    step = np.zeros((6, 8, 3), np.float32)
    step[:, 4:] = 1
    found = edges.function(step.swapaxes(0, 1) if turned else step)
    expected = np.zeros((6, 8))
    expected[:, 3:5] = 1
    np.testing.assert_allclose(found.T if turned else found, expected, atol=1e-6)


def test_edges_of_a_slope_are_its_steepness_in_any_direction() -> None:
    y, x = np.mgrid[0:9, 0:9].astype(np.float32)
    slope = np.repeat((0.03 * x + 0.04 * y)[..., None], 3, axis=2)
    np.testing.assert_allclose(edges.function(slope)[1:-1, 1:-1], 2 * 0.05, rtol=1e-4)


def test_sharpen_leaves_the_flat_alone_and_deepens_a_line() -> None:
    flat = np.full((30, 30), 0.4, np.float32)
    np.testing.assert_allclose(sharpen.function(flat), flat, rtol=1e-5)
    flat[:, 15] = 0.6
    found = sharpen.function(flat)
    assert (found[:, 15] > 0.7).all()
    assert (found[:, 14] < 0.4).all()


def test_combine_draws_lines_on_the_enlarged_tile() -> None:
    lines = np.zeros((5, 7), np.float32)
    lines[2, 3], lines[4, 6] = 1, 0.5
    found = combine.function(np.full((3, 4, 3), 0.8, np.float32), lines)
    expected = np.full((5, 7, 3), 204)
    expected[2, 3], expected[4, 6] = 0, 102
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("width", "height", "grid"), [(1, 1, 1), (4, 4, 4), (5, 9, 2), (40, 3, 3)])
def test_the_smallest_images_work_too(width: int, height: int, grid: int) -> None:
    found = evaluated(image_transformation(grid=grid, width=width, height=height))
    assert found.shape == (height, width, 3)


def test_the_split_sleeps_as_long_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    evaluated(image_transformation(width=8, height=8))
    assert slept == []
    evaluated(image_transformation(width=8, height=8, split_seconds=9))
    assert slept == [9]


def test_the_seed_determines_the_image() -> None:
    np.testing.assert_array_equal(generate_image(20, 10, 1), generate_image(20, 10, 1))
    assert not np.array_equal(generate_image(20, 10, 1), generate_image(20, 10, 2))
    assert generate_image(20, 10).shape == (10, 20, 3)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"grid": 0}, "at least 1"),
        ({"width": 2.5}, "at least 1"),
        ({"height": -3}, "at least 1"),
        ({"split_seconds": -1}, "at least 0"),
        ({"width": 3, "height": 9}, "3 x 9 pixels"),
        ({"image": np.zeros((9, 9), np.uint8)}, "shape"),
        ({"image": np.zeros((9, 9, 3))}, "float64"),
        ({"image": "picture.png"}, "shape"),
    ],
)
def test_invalid_images_are_rejected(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=rf"image_transformation\(.*{told}"):
        image_transformation(**bad)


@pytest.mark.real
def test_workers_compute_the_same_image(session: Session, image: Image) -> None:
    found = session.compute(image_transformation(image))[0]
    np.testing.assert_array_equal(found, evaluated(image_transformation(image)))
