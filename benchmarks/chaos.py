"""Run random workflows and farms on a real gateway and store while faults are injected.

For `--minutes`, `--clients` clients run random workflows, with every planner, and farms, one after
the other, on one `shoal gateway` and one durable Valkey server. Meanwhile sandboxes are killed and
paused; zygotes, clients, the gateway and the store are killed (the last two are restarted);
connections to the store are cut; its memory is exhausted for a second; and links to store and
gateway are slow for a while. Some runs damage their workers' processes. Some are detached: their
client leaves, and attaches later. One more client runs on the embedded default.

Every 30 s it prints runs, faults, right results, explained errors, hangs and leftovers. The exit
code is 1 unless all is clean. The seed determines workflows and faults, but not timing, so two runs
with the same seed may differ.

Everything runs in a temporary folder and is stopped with the experiment.
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
from laboratory.experiment import ChaosExperiment
from laboratory.faults import DAMAGE, WEIGHTS
from processes import adopt_orphans, end_all

TELLING = 30.0
"""Seconds between two reports."""
PHASE = 60.0
"""Seconds of faults in each phase, after which everything must settle."""


def say(text: str) -> None:
    print(text, flush=True)


def tell(experiment: ChaosExperiment, begun: float, ended: threading.Event) -> None:
    while not ended.wait(TELLING):
        say(f"{time.monotonic() - begun:4.0f} s  {experiment.ledger}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="duration in minutes (default: 10)"
    )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="seed of workflows and faults"
    )
    parser.add_argument(
        "--clients", type=positive, default=3, help="concurrent clients (default: 3)"
    )
    kinds = [*WEIGHTS, DAMAGE]
    parser.add_argument(
        "--faults",
        type=names_of(kinds),
        default=kinds,
        help="kinds of faults, comma-separated (default: all)",
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
    """Run the experiment, and return whether all was clean."""
    experiment = ChaosExperiment(folder, options.seed, options.faults, options.clients, say)
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
