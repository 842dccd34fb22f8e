"""Generate twelve kinds of task graphs that parallel programs have.

1. A kind has two sizes: `full` has 50 to 150 tasks, `small` 20 to 60.
2. The same kind, size and seed give the same graph everywhere.
3. A task computes for a second or so, varied per task; output sizes are relative to each other, and
   `costs_at` scales them to a ratio of communication to computation.
4. As everywhere in Shoal, a task has one output, and whoever needs a part of it fetches all of it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random

from quality.shapes import Shape, Step, shape_of


class Steps:
    """The steps of a graph that is being generated."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.all: dict[str, Step] = {}

    def add(
        self,
        category: str,
        *upstream: str,
        seconds: float = 1.0,
        nbytes: float = 1.0,
        vary: float = 0.2,
    ) -> str:
        """Add a step whose time and output size vary around the given ones; return its key."""
        key = f"{category}-{len(self.all)}"
        needs = list(dict.fromkeys(upstream))
        self.all[key] = Step(
            category,
            seconds * self.rng.lognormvariate(0.0, vary),
            nbytes * self.rng.lognormvariate(0.0, vary),
            needs,
        )
        return key


Tile = tuple[int, int]


def _updated(
    steps: Steps, tiles: dict[Tile, str], category: str, at: Tile, seconds: float, *needs: Tile
) -> None:
    """Add the step that updates a tile, which needs its last value and those of other tiles."""
    sources = [tiles[need] for need in (at, *needs) if need in tiles]
    tiles[at] = steps.add(category, *sources, seconds=seconds)


def cholesky(steps: Steps, tiles: int) -> None:
    """The tiled factorisation of a symmetric matrix."""
    updated = partial(_updated, steps, {})
    for k in range(tiles):
        updated("potrf", (k, k), 0.5)
        for i in range(k + 1, tiles):
            updated("trsm", (i, k), 1.0, (k, k))
        for i in range(k + 1, tiles):
            updated("syrk", (i, i), 1.0, (i, k))
            for j in range(k + 1, i):
                updated("gemm", (i, j), 2.0, (i, k), (j, k))


def lu(steps: Steps, tiles: int) -> None:
    """The tiled factorisation of a matrix, without pivoting."""
    updated = partial(_updated, steps, {})
    for k in range(tiles):
        updated("getrf", (k, k), 0.7)
        for i in range(k + 1, tiles):
            updated("trsm", (i, k), 1.0, (k, k))
            updated("trsm", (k, i), 1.0, (k, k))
        for i in range(k + 1, tiles):
            for j in range(k + 1, tiles):
                updated("gemm", (i, j), 2.0, (i, k), (k, j))


def fft(steps: Steps, points: int) -> None:
    """A tree that splits the points, then the butterflies."""
    level = [steps.add("split", nbytes=points)]
    while len(level) < points:
        nbytes = points / len(level) / 2
        level = [steps.add("split", above, nbytes=nbytes) for above in level for _ in range(2)]
    distance = 1
    while distance < points:
        level = [
            steps.add("butterfly", level[at], level[at ^ distance], seconds=1.5)
            for at in range(points)
        ]
        distance *= 2


def stencil(steps: Steps, cells: int) -> None:
    """A row of cells, each of which needs itself and its neighbours of the step before."""
    row = [steps.add("cell") for _ in range(cells)]
    for _ in range(max(3, cells * 3 // 4)):
        row = [steps.add("cell", *row[max(0, at - 1) : at + 2]) for at in range(cells)]


def pipelines(steps: Steps, number: int) -> None:
    """A source is split among pipelines of unequal stages, whose results are merged."""
    source = steps.add("source", nbytes=2.0)
    stages = [(steps.rng.uniform(0.3, 2.0), steps.rng.uniform(0.3, 2.0)) for _ in range(7)]
    ends = []
    for _ in range(number):
        end = source
        for stage, (seconds, nbytes) in enumerate(stages):
            end = steps.add(f"stage{stage}", end, seconds=seconds, nbytes=nbytes)
        ends.append(end)
    steps.add("merge", *ends)


def joins(steps: Steps, parts: int) -> None:
    """A partitioned table is joined with four small ones in turn, then aggregated."""
    rows = [steps.add("scan", seconds=1.5, nbytes=3.0) for _ in range(parts)]
    for table in range(4):
        scans = [steps.add("scan", seconds=0.5) for _ in range(max(1, parts // 4))]
        built = steps.add("build", *scans, seconds=0.5, nbytes=0.5 + table / 2)
        nbytes = steps.rng.uniform(0.5, 3.0)
        rows = [steps.add(f"join{table}", row, built, nbytes=nbytes) for row in rows]
    partial = [steps.add("aggregate", row, seconds=0.5, nbytes=0.2) for row in rows]
    steps.add("total", *partial, seconds=0.5)


def shuffle(steps: Steps, mappers: int) -> None:
    """Two rounds in which every reducer needs every mapper."""
    outputs = [steps.add("map", vary=0.5) for _ in range(mappers)]
    for reducers in (mappers * 2 // 3, mappers // 2):
        reduced = [steps.add("reduce", *outputs, seconds=2.0) for _ in range(reducers)]
        outputs = [steps.add("map", output, vary=0.5) for output in reduced]
    steps.add("collect", *outputs)


def series_parallel(steps: Steps, tasks: int) -> None:
    """A random graph of nested forks and joins."""

    def grow(budget: int, source: str) -> str:
        here = steps.add("series", source, vary=0.5)
        budget -= 1
        while budget >= 4:
            taken = min(budget, steps.rng.randint(4, max(4, budget * 2 // 3)))
            branches = min(taken - 1, steps.rng.randint(2, 5))
            ends = [grow((taken - 1) // branches, here) for _ in range(branches)]
            here = steps.add("join", *ends, vary=0.5)
            budget -= taken
        for _ in range(budget):
            here = steps.add("series", here, vary=0.5)
        return here

    grow(tasks - 1, steps.add("source"))


def chains(steps: Steps, number: int) -> None:
    """Independent chains of unequal length; some tasks also need one of the chain before."""
    before: list[str] = []
    for _ in range(number):
        chain = [steps.add("link")]
        for _ in range(steps.rng.randint(number // 2 + 1, number * 3 // 2 + 1)):
            needs = [chain[-1]]
            if before and steps.rng.random() < 0.15:
                needs.append(steps.rng.choice(before))
            chain.append(steps.add("link", *needs))
        before = chain


def sweeps(steps: Steps, points: int) -> None:
    """Two parameter sweeps, whose times vary widely; the first decides where the second looks."""
    setting = steps.add("prepare", nbytes=2.0)
    for _ in range(2):
        runs = [steps.add("simulate", setting, seconds=2.0, vary=0.8) for _ in range(points)]
        scores = [steps.add("evaluate", run, seconds=0.5, nbytes=0.1) for run in runs]
        setting = steps.add("choose", *scores, seconds=0.3, nbytes=2.0)


def pyramid(steps: Steps, base: int) -> None:
    """Rows that get shorter: each task needs the two below it."""
    row = [steps.add("base", vary=0.4) for _ in range(base)]
    while len(row) > 1:
        row = [steps.add("above", *row[at : at + 2], vary=0.4) for at in range(len(row) - 1)]


def kmeans(steps: Steps, parts: int) -> None:
    """Large partitions stay the same, small centroids change in every iteration."""
    data = [steps.add("load", nbytes=10.0) for _ in range(parts)]
    centres = steps.add("start", *data[:1], seconds=0.3, nbytes=0.1)
    for _ in range(max(3, parts // 2)):
        sums = [steps.add("assign", part, centres, seconds=1.5, nbytes=0.1) for part in data]
        centres = steps.add("update", *sums, seconds=0.3, nbytes=0.1)


KINDS: Mapping[str, tuple[Callable[[Steps, int], None], int, int]] = {
    "cholesky": (cholesky, 8, 5),
    "lu": (lu, 6, 4),
    "fft": (fft, 16, 8),
    "stencil": (stencil, 11, 6),
    "pipelines": (pipelines, 12, 5),
    "joins": (joins, 12, 4),
    "shuffle": (shuffle, 24, 9),
    "series-parallel": (series_parallel, 100, 36),
    "chains": (chains, 9, 5),
    "sweeps": (sweeps, 24, 8),
    "pyramid": (pyramid, 13, 7),
    "k-means": (kmeans, 12, 5),
}
"""Every kind: its generator, and what makes it full or small."""


def graph(kind: str, seed: int, *, small: bool = False) -> Shape:
    """Generate a graph of a kind."""
    generate, full, less = KINDS[kind]
    steps = Steps(Random(f"{kind} {seed}"))
    generate(steps, less if small else full)
    return shape_of(kind, steps.all)


def graphs(seed: int, *, small: bool = False) -> Iterator[Shape]:
    """Generate a graph of every kind."""
    return (graph(kind, seed, small=small) for kind in KINDS)
