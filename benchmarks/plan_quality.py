"""Compare the plans of Shoal's planners with those of published schedulers and with a lower bound.

The workflows have the shapes of wfcommons' recipes, at several ratios of communication to
computation (ccr): the mean time to save an output and fetch it elsewhere, over the mean execution.
The schedulers are those of saga (the package anrg-saga). Every plan is scored by Shoal's simulator,
with the figures that it was planned with; starts and messages cost nothing. The bound is the
longest path with free transfers, or all work shared evenly, whichever is more. GB-seconds are
billed from a worker's start until it leaves; saga's workers stay until their last task.

A scheduler that exceeds the limit is skipped for the rest of that recipe.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from arguments import names_of, new_file, positive

try:
    from quality.contest import Case, Contestant, Terms, contend
    from quality.planners import OURS
    from quality.report import QualityReport, find_setting, save, small_table
    from quality.shapes import RECIPES, generate
    from quality.small import SmallCase, contend_small, small_shapes

    from shoal.experiments.schedulers import SCHEDULERS, SagaPlanner
except ModuleNotFoundError as missing:
    print(f"{missing.name} isn't installed (pip install 'shoal[quality]')", file=sys.stderr)
    raise SystemExit(2) from missing

SEED = 1

Say = Callable[[str], None]
"""Prints progress."""


def contestants(names: Sequence[str]) -> list[Contestant]:
    """Return Shoal's planners and the named schedulers of saga."""
    ours = [Contestant(name, make, ours=True) for name, make in OURS.items()]
    return ours + [Contestant(name, _planner_of(name)) for name in SCHEDULERS if name in names]


def _planner_of(name: str) -> Callable[[], SagaPlanner]:
    return lambda: SagaPlanner(SCHEDULERS[name])


def compare(
    recipe: str,
    sizes: Sequence[int],
    ccrs: Sequence[float],
    schedulers: Sequence[str],
    terms: Terms,
    say: Say,
) -> list[Case]:
    """Score a recipe at every size and ratio; without edges there is only the ratio 0."""
    cases = []
    everyone = contestants(schedulers)
    barred: dict[str, str] = {}
    for size in sorted(sizes):
        shape = generate(recipe, size, SEED)
        for ccr in ccrs if shape.edges else [0.0]:
            cases.append(contend(shape, ccr, everyone, barred, terms))
            say(_progress(cases[-1]))
    return cases


def compare_small(
    number: int, ccrs: Sequence[float], everyone: Sequence[Contestant], terms: Terms, say: Say
) -> list[SmallCase]:
    """Score small shapes at every ratio."""
    cases = []
    for shape, workers in small_shapes(number, SEED):
        for ccr in ccrs:
            cases.append(contend_small(shape, ccr, everyone, workers, terms))
            case = cases[-1]
            say(
                f"{case.shape} ccr {ccr:g} on {workers} workers: brute force "
                f"{case.brute_force:.3f} s, optimum {case.optimum:.3f} s"
            )
    return cases


def _progress(case: Case) -> str:
    ranked = sorted(case.scores, key=lambda name: case.scores[name].makespan)
    shown = [name for name in ranked if name in OURS or name == ranked[0]]
    ratios = [f"{name} {case.scores[name].makespan / case.lower_bound:.3f}" for name in shown]
    planning = sum(score.planning for score in case.scores.values())
    return (
        f"{case.shape} ({case.tasks} tasks, {case.edges} edges) ccr {case.ccr:g}: "
        f"{', '.join(ratios)}; {len(ranked)} planned in {planning:.1f} s"
    )


def _sizes(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def _ratios(text: str) -> list[float]:
    ratios = [float(part) for part in text.split(",")]
    if min(ratios) <= 0:
        raise argparse.ArgumentTypeError("greater than 0")
    return ratios


def parser() -> argparse.ArgumentParser:
    """Parse the command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    recipes, schedulers = list(RECIPES), list(SCHEDULERS)
    add = made.add_argument
    add("--recipes", type=names_of(recipes), default=recipes, metavar="A,B", help=",".join(recipes))
    add("--tasks", type=_sizes, default=[100, 300, 1000], metavar="N,M", help="100,300,1000")
    add("--ccr", type=_ratios, default=[0.1, 1.0, 10.0], metavar="R,S", help="0.1,1,10")
    add("--workers", type=positive, default=8, metavar="N", help="workers of one slot (8)")
    add("--seconds", type=float, metavar="S", help="planning limit that Shoal's planners are told")
    add("--limit", type=float, default=60.0, metavar="S", help="seconds any planning may take (60)")
    add(
        "--schedulers",
        type=names_of(schedulers),
        default=schedulers,
        metavar="A,B",
        help=f"of saga's: {','.join(schedulers)}",
    )
    add("--small", type=int, default=20, metavar="N", help="small workflows, 0 for none (20)")
    add("--json", type=new_file, metavar="FILE", help="write everything, each case included")
    add("--jobs", type=positive, default=1, metavar="N", help="recipes at a time (1)")
    add("--quiet", action="store_true", help="print the tables only, no progress")
    return made


def fix_hashes() -> None:
    """Restart with fixed hashes, because saga and wfcommons iterate over sets of names."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _say_nothing(line: str) -> None:
    pass


def _say_aloud(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    options = parser().parse_args()
    fix_hashes()
    say = _say_nothing if options.quiet else _say_aloud
    setting = find_setting(SEED, options.workers, options.seconds, options.limit)
    terms = Terms(options.workers, options.seconds, options.limit)
    everyone = contestants(options.schedulers)
    common = options.tasks, options.ccr, options.schedulers, terms, say
    try:
        with ProcessPoolExecutor(options.jobs) as pool:
            started = [pool.submit(compare, recipe, *common) for recipe in options.recipes]
            cases = [case for future in started for case in future.result()]
        small = compare_small(options.small, options.ccr, everyone, terms, say)
    except KeyboardInterrupt:
        return 130
    print(setting, QualityReport(cases, everyone), sep="\n\n")
    if small:
        print("", small_table(small), sep="\n")
    if options.json:
        save(options.json, setting, cases, small)
    return 0


if __name__ == "__main__":
    sys.exit(main())
