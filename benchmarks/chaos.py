"""Chaos: random workflows and farms on a real gateway and store while all of them are hurt.

For `--minutes`, `--clients` clients run random workflows, with every planner, and farms, one after
the other, on one `shoal gateway` and one durable Valkey server, while sandboxes are killed and
paused, zygotes, clients, the gateway and the store are killed (the last two are started again),
connections to the store are cut, its memory is full for a second, and links to store and gateway
are slow for a while. Some runs damage the processes of their workers. Some are detached: their
client leaves, and attaches later. One more client runs on the embedded default. Told every 30 s are
runs, faults, right results, root-caused errors, hangs and leftovers; the exit code is 1 unless all
is clean. The seed decides workflows and faults, but not when a process is where: a second time may
go another way.

Everything is started in a temporary folder and ended with the experiment.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from arguments import names_of, positive
from laboratory.experiment import Experiment
from laboratory.faults import DAMAGE, WEIGHTS
from processes import adopt_orphans, end_all

TELLING = 30.0
"""Seconds between two reports."""
PHASE = 60.0
"""Seconds of faults until everything has to settle."""


def say(text: str) -> None:
    print(text, flush=True)


def tell(experiment: Experiment, begun: float, ended: threading.Event) -> None:
    while not ended.wait(TELLING):
        say(f"{time.monotonic() - begun:4.0f} s  {experiment.ledger}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long (10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the chance")
    parser.add_argument("--clients", type=positive, default=3, help="runs at a time (3)")
    kinds = [*WEIGHTS, DAMAGE]
    parser.add_argument(
        "--faults", type=names_of(kinds), default=kinds, help="comma-separated kinds (all)"
    )
    options = parser.parse_args()
    adopt_orphans()
    say(f"seed {options.seed}, {options.minutes:g} minutes, faults: {', '.join(options.faults)}")
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            clean = conducted(options, Path(folder))
    finally:
        end_all()
    sys.exit(0 if clean else 1)


def conducted(options: argparse.Namespace, folder: Path) -> bool:
    """Do the experiment; whether all was clean."""
    experiment = Experiment(folder, options.seed, options.faults, options.clients, say)
    begun, ended = time.monotonic(), threading.Event()
    threading.Thread(target=tell, args=(experiment, begun, ended), daemon=True).start()
    experiment.run(options.minutes * 60, PHASE)
    experiment.close()
    ended.set()
    say(f"{time.monotonic() - begun:4.0f} s  {experiment.ledger}")
    say("clean" if experiment.ledger.clean else "NOT CLEAN")
    return experiment.ledger.clean


if __name__ == "__main__":
    main()
