"""Measure how good the plans of Shoal's planners are, on Shoal's simulator.

Every plan is scored with the figures that it was planned with; starts and messages cost nothing.
Graphs have several ratios of communication to computation (ccr): the mean time to save an output
and fetch it elsewhere, over the mean execution. The published schedulers are those of saga (the
package anrg-saga). Name the parts that you want; default: all of them.

  kinds    12 kinds of graphs of 50 to 150 tasks on 4 and 16 workers: Auto against the best of 15
           published schedulers
  recipes  the shapes of wfcommons' recipes on 8 workers: all of Shoal's planners, saga's 20
           schedulers and a lower bound, which is the longest path with free transfers, or all work
           shared evenly, whichever is more. GB-seconds are billed from a worker's start until it
           leaves; saga's workers stay until their last task. A scheduler that exceeds the limit is
           skipped for the rest of that recipe.
  optimum  graphs of 20 to 60 tasks of all shapes on 2, 4 and 8 workers: Auto against the bound that
           a constraint solver (OR-tools) proves, and against the best of its plans, polished
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from arguments import names_of, new_file, positive

try:
    from quality.contest import Case, Contestant, Terms, contend
    from quality.distance import BoundedCase, contend_bound, distance_table, small_graphs
    from quality.graphs import KINDS
    from quality.kinds import PUBLISHED, contend_kind, kinds_table, ratio
    from quality.planners import OURS
    from quality.report import QualityReport, find_setting, save
    from quality.shapes import RECIPES, Shape, generate

    from shoal.experiments.schedulers import SCHEDULERS, SagaPlanner
except ModuleNotFoundError as missing:
    print(f"{missing.name} isn't installed (pip install 'shoal[quality]')", file=sys.stderr)
    raise SystemExit(2) from missing

SEED = 1

WORKERS = "workers of one slot (kinds 4,16; recipes 8; optimum 2,4,8)"

Say = Callable[[str], None]
"""Prints progress."""


def contestants(ours: Sequence[str], published: Sequence[str]) -> list[Contestant]:
    """Return the named ones of Shoal's planners and of saga's schedulers."""
    own = [Contestant(name, OURS[name], ours=True) for name in ours]
    return own + [Contestant(name, _planner_of(name)) for name in SCHEDULERS if name in published]


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
    everyone = contestants(list(OURS), schedulers)
    barred: dict[str, str] = {}
    for size in sorted(sizes):
        shape = generate(recipe, size, SEED)
        for ccr in ccrs if shape.edges else [0.0]:
            cases.append(contend(shape, ccr, everyone, barred, terms))
            say(_progress(cases[-1]))
    return cases


def compare_kind(
    kind: str,
    ccrs: Sequence[float],
    workers: Sequence[int],
    schedulers: Sequence[str],
    terms: Terms,
    say: Say,
) -> list[Case]:
    """Score a kind of graph at every ratio and number of workers."""
    cases = []
    for ccr in ccrs:
        for count in workers:
            everyone = contestants(["auto"], [name for name in PUBLISHED if name in schedulers])
            case = contend_kind(kind, ccr, SEED, everyone, replace(terms, workers=count))
            cases.append(case)
            say(f"{kind} ccr {ccr:g} on {count} workers: {ratio(case):.3f} of the best published")
    return cases


def compare_bound(
    shape: Shape, ccr: float, workers: int, terms: Terms, seconds: float, say: Say
) -> BoundedCase:
    """Hold Auto's plan of a small graph against the optimum."""
    case = contend_bound(shape, ccr, replace(terms, workers=workers), seconds)
    say(
        f"{case.shape} ccr {ccr:g} on {workers} workers: {case.over_best:.1%} over the best plan, "
        f"{case.over_bound:.1%} over the bound"
    )
    return case


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
    add = made.add_argument
    add("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (all)")
    for name, known in (("kinds", KINDS), ("recipes", RECIPES), ("schedulers", SCHEDULERS)):
        choice = list(known)
        add(f"--{name}", type=names_of(choice), default=choice, metavar="A,B", help=_listed(choice))
    add("--tasks", type=_sizes, default=[100, 300], metavar="N,M", help="of recipes (100,300)")
    add("--ccr", type=_ratios, default=[0.1, 1.0, 10.0], metavar="R,S", help="0.1,1,10")
    add("--workers", type=_sizes, metavar="N,M", help=WORKERS)
    add("--seconds", type=float, metavar="S", help="planning limit that Shoal's planners are told")
    add("--limit", type=float, default=60.0, metavar="S", help="seconds any planning may take (60)")
    add("--solver", type=float, default=60.0, metavar="S", help="seconds for each optimum (60)")
    add("--json", type=new_file, metavar="FILE", help="write everything, each case included")
    add("--jobs", type=positive, default=1, metavar="N", help="processes (1)")
    add("--quiet", action="store_true", help="print the tables only, no progress")
    return made


def _listed(names: Sequence[str]) -> str:
    return ",".join(names)


def fix_hashes() -> None:
    """Restart with fixed hashes, because saga and wfcommons iterate over sets of names."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _say_nothing(line: str) -> None:
    pass


def _say_aloud(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_kinds(options: argparse.Namespace, pool: ProcessPoolExecutor, say: Say) -> list[Case]:
    """Score the kinds of graphs, and print their table."""
    terms = Terms(0, options.seconds, options.limit)
    common = options.ccr, options.workers or [4, 16], options.schedulers, terms, say
    started = [pool.submit(compare_kind, kind, *common) for kind in options.kinds]
    cases = [case for future in started for case in future.result()]
    print("", kinds_table(cases), sep="\n")
    return cases


def run_recipes(options: argparse.Namespace, pool: ProcessPoolExecutor, say: Say) -> list[Case]:
    """Score the recipes, and print their tables."""
    cases = []
    for count in options.workers or [8]:
        terms = Terms(count, options.seconds, options.limit)
        common = options.tasks, options.ccr, options.schedulers, terms, say
        started = [pool.submit(compare, recipe, *common) for recipe in options.recipes]
        cases += [case for future in started for case in future.result()]
    print("", QualityReport(cases, contestants(list(OURS), options.schedulers)), sep="\n")
    return cases


def run_optimum(
    options: argparse.Namespace, pool: ProcessPoolExecutor, say: Say
) -> list[BoundedCase]:
    """Hold Auto against the optimum of small graphs, and print the table."""
    terms = Terms(0, options.seconds, options.limit)
    started = [
        pool.submit(compare_bound, shape, ccr, count, terms, options.solver, say)
        for shape in small_graphs(options.kinds, options.recipes, SEED)
        for ccr in options.ccr
        for count in options.workers or [2, 4, 8]
    ]
    cases = [future.result() for future in started]
    print("", distance_table(cases), sep="\n")
    return cases


PARTS: dict[str, Callable[[argparse.Namespace, ProcessPoolExecutor, Say], Sequence[object]]] = {
    "kinds": run_kinds,
    "recipes": run_recipes,
    "optimum": run_optimum,
}


def main() -> int:
    options = parser().parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser().error(f"no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    fix_hashes()
    say = _say_nothing if options.quiet else _say_aloud
    setting = find_setting(SEED, options.seconds, options.limit)
    print(setting)
    found = {}
    try:
        with ProcessPoolExecutor(options.jobs) as pool:
            for part in options.parts or PARTS:
                found[part] = PARTS[part](options, pool, say)
    except KeyboardInterrupt:
        return 130
    if options.json:
        save(options.json, setting, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
