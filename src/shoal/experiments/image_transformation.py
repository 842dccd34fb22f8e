"""Define image transformation, a workflow of 130 tasks in eight levels on one picture.

    level  tasks
        0  split                1   the picture into a grid of 4 x 4 tiles
        1  pick                16   one tile, as floats
        2  resize, edges  16 + 16   branch A at half the size; branch B in grey
        3  blur, sharpen  16 + 16
        4  normalise           16   branch A
        5  sepia               16   branch A
        6  combine             16   B's lines drawn over A at the full size
        7  merge                1   the tiles back into the grid

Each tile is transformed separately; its border pixels are repeated beyond the border.

The published version sleeps 9 s in the split, which leaves time to pre-warm workers for what
follows. Ours doesn't, because a split takes milliseconds; `split_seconds=9` does the same for
experiments on pre-warming.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

from shoal.errors import UsageError
from shoal.experiments.parameters import check_counts, check_seconds
from shoal.farm.arrays import NDArray, np
from shoal.workflow import Output, task

Image: TypeAlias = NDArray[np.uint8]
"""Rows of RGB pixels."""
Tile: TypeAlias = NDArray[np.float32]
"""Rows of RGB or grey pixels, as floats from 0 to 1."""

_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
_SEPIA = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)
_CACHED_NBYTES = 256 * 1024
"""The part of a tile that fits into a core's cache."""
_ALONG, _ACROSS = (-1.0, 0.0, 1.0), (0.25, 0.5, 0.25)
"""The Sobel operator: the derivative along one axis, smoothed across it."""


def generate_image(width: int, height: int, seed: int = 0) -> Image:
    """Generate a picture of waves of colour, discs with hard edges, and some noise."""
    rng = np.random.default_rng(seed)
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(0, width / height, width, dtype=np.float32)[None, :]
    image = np.empty((height, width, 3), np.float32)
    for channel in range(3):
        across, down, phase = rng.uniform(2, 12, 3).astype(np.float32)
        image[..., channel] = 0.5 + 0.3 * np.sin(across * x + phase) * np.cos(down * y)
    for _ in range(24):
        left, top, radius = rng.random(3) * (width / height, 1, 0.15)
        image[(x - left) ** 2 + (y - top) ** 2 < radius**2] = rng.random(3)
    image += np.float32(0.02) * rng.standard_normal((height, width, 1), np.float32)
    return _as_image(image)


def image_transformation(
    image: Image | None = None,
    grid: int = 4,
    *,
    width: int = 3000,
    height: int = 2001,
    split_seconds: float = 0.0,
) -> Output[Image]:
    """Build the workflow that transforms a picture: 130 tasks by default.

    Args:
        image: Rows of RGB pixels; default: a generated picture.
        grid: The number of tiles in each direction.
        width: The width of the generated picture.
        height: The height of the generated picture.
        split_seconds: How long the split sleeps.
    """
    check_counts("image_transformation", grid=grid, width=width, height=height)
    check_seconds("image_transformation", split_seconds=split_seconds)
    picture = generate_image(width, height) if image is None else np.asarray(image)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise UsageError(
            f"image_transformation(image=…) takes rows of pixels of 3 bytes, not an array of shape "
            f"{picture.shape} and type {picture.dtype}."
        )
    if min(picture.shape[:2]) < grid:
        raise UsageError(
            f"image_transformation(grid={grid}): a picture of {picture.shape[1]} x "
            f"{picture.shape[0]} pixels can't be cut into that many tiles."
        )
    tiles = split(picture, grid, split_seconds)
    rows = [range(row * grid, (row + 1) * grid) for row in range(grid)]
    return merge([[transformed(pick(tiles, i)) for i in row] for row in rows])


def transformed(tile: Output[Tile]) -> Output[Image]:
    """Build the part of the workflow that transforms one tile in both branches."""
    tinted = sepia(normalise(blur(resize(tile))))
    return combine(tinted, sharpen(edges(tile)))


@task
def split(image: Image, grid: int, seconds: float) -> list[Image]:
    """Split the picture into tiles, row by row."""
    if seconds:
        time.sleep(seconds)
    rows = np.array_split(image, grid)
    return [tile.copy() for row in rows for tile in np.array_split(row, grid, axis=1)]


@task
def pick(tiles: Sequence[Image], i: int) -> Tile:
    """Return one tile as floats."""
    return tiles[i].astype(np.float32) / np.float32(255)


@task
def resize(tile: Tile) -> Tile:
    """Scale the tile to half its size."""
    height, width = tile.shape[:2]
    return _scaled(tile, (height + 1) // 2, (width + 1) // 2)


@task
def blur(tile: Tile) -> Tile:
    """Blur the tile."""
    return _smoothed(tile, sigma=3.0)


@task
def normalise(tile: Tile) -> Tile:
    """Stretch each colour to 0 to 1, clipping the extreme one percent."""
    low, high = np.percentile(tile, [1, 99], axis=(0, 1)).astype(np.float32)
    flat = high <= low
    low, high = np.where(flat, 0, low), np.where(flat, 1, high)
    stretched: Tile = np.clip((tile - low) / (high - low), 0, 1, dtype=np.float32)
    return stretched


@task
def sepia(tile: Tile) -> Tile:
    """Tint the tile in sepia."""
    # einsum, not @: BLAS may round differently with other numbers of threads.
    browned: Tile = np.minimum(np.einsum("yxc,dc->yxd", tile, _SEPIA), np.float32(1))
    return browned


@task
def edges(tile: Tile) -> Tile:
    """Detect edges with the Sobel operator."""
    grey = np.einsum("yxc,c->yx", tile, _LUMINANCE)
    across = _convolved(_convolved(grey, _ACROSS, axis=0), _ALONG, axis=1)
    down = _convolved(_convolved(grey, _ALONG, axis=0), _ACROSS, axis=1)
    steepness: Tile = np.sqrt(across * across + down * down)
    return steepness


@task
def sharpen(tile: Tile) -> Tile:
    """Sharpen the tile by unsharp masking."""
    clear: Tile = np.clip(2 * tile - _smoothed(tile, sigma=3.0), 0, 1)
    return clear


@task
def combine(tinted: Tile, lines: Tile) -> Image:
    """Draw the edges over the tinted tile, scaled to their size."""
    return _as_image(_scaled(tinted, *lines.shape) * (1 - lines)[..., None])


@task
def merge(tiles: Sequence[Sequence[Image]]) -> Image:
    """Merge the tiles into one picture."""
    return np.concatenate([np.concatenate(row, axis=1) for row in tiles])


def _as_image(tile: Tile) -> Image:
    levels: Tile = np.rint(np.clip(tile, 0, 1) * np.float32(255))
    return levels.astype(np.uint8)


def _scaled(tile: Tile, height: int, width: int) -> Tile:
    """Scale the tile by bilinear interpolation."""
    return _stretched(_stretched(tile, height, axis=0), width, axis=1)


def _stretched(tile: Tile, length: int, axis: int) -> Tile:
    place = (np.arange(length) + 0.5) * tile.shape[axis] / length - 0.5
    place = np.clip(place, 0, tile.shape[axis] - 1)
    before = place.astype(np.intp)
    after = np.minimum(before + 1, tile.shape[axis] - 1)
    share = np.expand_dims((place - before).astype(np.float32), (1 - axis, 2))
    between: Tile = tile.take(before, axis) * (1 - share) + tile.take(after, axis) * share
    return between


def _smoothed(tile: Tile, sigma: float) -> Tile:
    """Convolve the tile with a Gaussian, truncated at three sigma."""
    reach = round(3 * sigma)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel = (bell / bell.sum()).tolist()
    return _convolved(_convolved(tile, kernel, axis=0), kernel, axis=1)


def _convolved(tile: Tile, kernel: Sequence[float], axis: int) -> Tile:
    """Convolve the tile with a kernel along one axis."""
    reach = len(kernel) // 2
    margins = [(reach, reach) if i == axis else (0, 0) for i in range(tile.ndim)]
    padded = np.pad(tile, margins, mode="edge")
    total = np.zeros_like(tile)
    rows = max(1, _CACHED_NBYTES * len(tile) // (tile.nbytes or 1))
    for top in range(0, len(tile), rows):
        band = total[top : top + rows]
        bottom, width = top + len(band), band.shape[1]
        for i, weight in enumerate(kernel):
            window = (
                padded[top + i : bottom + i] if axis == 0 else padded[top:bottom, i : i + width]
            )
            band += np.float32(weight) * window
    return total
