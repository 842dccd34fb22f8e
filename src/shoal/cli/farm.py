"""Implement `shoal farm`: train, evaluate and calibrate autoscalers, and draw figures."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import calibrate
from shoal.client.progress_bar import ProgressBar
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.farm.episode import Episode
    from shoal.farm.learned import Trained
    from shoal.farm.training import Training

_ORDERS = ("fifo", "earliest-deadline", "least-laxity")
_BOTH = ("paper-measured", "paper-described")


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    train = actions.add_parser(
        "train",
        help="train an autoscaler",
        description="Train an autoscaler in the simulated farm and write it to a file.",
    )
    train.add_argument("kind",
                       choices=("predictive", "sarsa", "dqn", "paper-sarsa", "paper-dqn"),
                       help="one of Shoal's agents, or the paper's own; dqn and paper-dqn need "
                       "the extra rl")  # fmt: skip
    train.add_argument("file", metavar="FILE", help="the policy's file; must end with .npz")
    train.add_argument("--workloads", metavar="NAMES",
                       help=f"comma-separated (default: {','.join(_BOTH)}; the paper's agents: "
                       "paper-measured)")  # fmt: skip
    train.add_argument("--order", choices=_ORDERS, default="fifo",
                       help="the queue's order (default: %(default)s)")  # fmt: skip
    train.add_argument("--no-clock", action="store_true",
                       help="don't let the policy observe the phase clock")  # fmt: skip
    train.add_argument("--target", type=float, default=99.4, metavar="PERCENT",
                       help="share of tasks to finish on time (default: %(default)s)")  # fmt: skip
    train.add_argument("--action-price", type=float, metavar="W", default=0.05,
                       help="cost of a scaling action, in workers "
                       "(default: %(default)s)")  # fmt: skip
    train.add_argument("--episodes", type=int,
                       help="how many episodes to train (default: 1000; paper-sarsa: 260, "
                       "paper-dqn: 80)")  # fmt: skip
    train.add_argument("--patience", type=int, default=400, metavar="EPISODES",
                       help="stop after this many episodes without a better policy "
                       "(default: %(default)s; the paper's agents never stop early)")  # fmt: skip

    train.add_argument(
        "--seed", type=int, default=0, help="seed of all randomness (default: %(default)s)"
    )
    compare = actions.add_parser(
        "evaluate",
        help="compare autoscalers on the same streams",
        description="Compare autoscalers on the same streams, none of which training used. Prints "
        "means and their standard errors.",
    )
    compare.add_argument("autoscalers", metavar="NAMES", nargs="?",
                         help="reactive-average, reactive-maximum, square-root, predictive, sarsa, "
                         "dqn, fixed-N, or files of policies; comma-separated (default: every "
                         "one that suits the setting)")  # fmt: skip
    compare.add_argument("--workloads", metavar="NAMES", default=",".join(_BOTH),
                         help=f"comma-separated (default: {','.join(_BOTH)})")  # fmt: skip
    compare.add_argument("--orders", metavar="NAMES", default="fifo,least-laxity",
                         help="orders of the queue, comma-separated "
                         "(default: %(default)s)")  # fmt: skip
    compare.add_argument("--clock", choices=("with", "without", "both"), default="both",
                         help="whether autoscalers observe the phase clock "
                         "(default: %(default)s)")  # fmt: skip
    compare.add_argument("--seeds", type=int, default=200,
                         help="streams of each workload (default: %(default)s)")  # fmt: skip
    compare.add_argument("--figures", metavar="FOLDER",
                         help="draw the paper's Fig. 5 and Fig. 6 in this folder")  # fmt: skip
    figures = actions.add_parser(
        "figures",
        help="draw the farm paper's Fig. 2 and Fig. 4",
        description="Draw what workers of the simulated farm cost and save (Fig. 2), and how the "
        "tasks of the paper's streams arrive (Fig. 4).",
    )
    figures.add_argument("folder", metavar="FOLDER", help="where to write the SVGs")
    calibrate.configure(actions)


def carry_out(args: argparse.Namespace) -> None:
    """Run the action that was asked for."""
    if args.action == "train":
        _train(args)
    elif args.action == "calibrate":
        calibrate.carry_out(args)
    elif args.action == "figures":
        _draw_platform(Path(args.folder))
    else:
        _evaluate(args)


def _train(args: argparse.Namespace) -> None:
    from shoal.farm.training import measured

    path = Path(args.file)
    if path.suffix != ".npz":
        raise UsageError(f"{args.file}: a policy's file must end with .npz.")
    known = _preset(args.kind)
    training = replace(
        known,
        workloads=tuple(args.workloads.split(",")) if args.workloads else known.workloads,
        order=args.order,
        phase_clock=not args.no_clock,
        target=args.target / 100,
        action_price=args.action_price,
        episodes=args.episodes or known.episodes,
        patience=args.patience,
        seed=args.seed,
    )
    policy = _trained(args.kind, training)
    policy.about["command"] = _command(args, training)
    policy.save(path)
    service, workers, actions = measured(training, policy)
    print(
        f"{args.file}: {100 * service:.2f} % on time at {workers:.2f} workers with {actions:.1f} "
        f"actions on the held-out streams, after {policy.about['trained_episodes']} episodes"
    )


def _preset(kind: str) -> Training:
    """Return what an agent is trained with unless options say otherwise."""
    from shoal.farm.paper_agents import PAPER_DQN, PAPER_SARSA
    from shoal.farm.training import Training

    return {"paper-sarsa": PAPER_SARSA, "paper-dqn": PAPER_DQN}.get(kind) or Training()


def _trained(kind: str, training: Training) -> Trained:
    from shoal.farm.dqn import train_dqn
    from shoal.farm.paper_agents import train_paper_dqn, train_paper_sarsa
    from shoal.farm.predictive_plan import planning_steps, train_predictive
    from shoal.farm.sarsa import train_sarsa, training_steps

    trainers: dict[str, tuple[Callable[..., Trained], int]] = {
        "predictive": (train_predictive, planning_steps(training)),
        "sarsa": (train_sarsa, training_steps(training)),
        "dqn": (train_dqn, training.episodes),
        "paper-sarsa": (train_paper_sarsa, training.episodes),
        "paper-dqn": (train_paper_dqn, training.episodes),
    }
    train, steps = trainers[kind]
    bar = ProgressBar(f"train {kind}", steps)

    def show(done: int, best: float) -> None:
        bar.show(done)

    try:
        return train(training, show)
    finally:
        bar.close()


def _command(args: argparse.Namespace, training: Training) -> str:
    """Return the command that trains this policy again, with every option spelled out."""
    options = {name: getattr(args, name) for name in ("order", "target", "action_price")}
    options["workloads"] = ",".join(training.workloads)
    options |= {name: getattr(training, name) for name in ("episodes", "patience", "seed")}

    words = ["shoal", "farm", "train", args.kind, Path(args.file).name]
    words += ["--no-clock"] if args.no_clock else []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _evaluate(args: argparse.Namespace) -> None:
    from shoal.farm.evaluation import evaluate, maker_named, names_for, settings, table

    clocks: Sequence[bool] = {"with": (True,), "without": (False,), "both": (True, False)}[
        args.clock
    ]
    given = args.autoscalers.split(",") if args.autoscalers else None
    compared = [
        (setting, {name: maker_named(name) for name in given or names_for(setting)})
        for setting in settings(args.workloads.split(","), args.orders.split(","), clocks)
    ]
    bar = ProgressBar("evaluate", args.seeds * sum(len(makers) for _, makers in compared))
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        bar.show(done)

    try:
        results = [
            (setting, evaluate(makers, setting, seeds=args.seeds, report=count))
            for setting, makers in compared
        ]
    finally:
        bar.close()
    for setting, episodes in results:
        print(f"{setting}; {args.seeds} streams, mean ± standard error\n{table(episodes)}\n")
        if args.figures:
            _draw(Path(args.figures), str(setting), episodes)


def _draw(folder: Path, title: str, episodes: dict[str, list[Episode]]) -> None:
    from shoal.farm.figures import course_svg, tradeoff_svg

    folder.mkdir(parents=True, exist_ok=True)
    stem = title.replace(", ", "-").replace(" ", "-")
    for figure, draw in (("figure5", tradeoff_svg), ("figure6", course_svg)):
        path = folder / f"{figure}-{stem}.svg"
        path.write_text(draw(episodes, title), encoding="utf-8")
        print(f"written to {path}")


def _draw_platform(folder: Path) -> None:
    from shoal.farm.platform_figures import arrivals_svg, scaling_svg

    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("figure2", scaling_svg), ("figure4", arrivals_svg)):
        path = folder / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(f"written to {path}")
