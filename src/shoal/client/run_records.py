"""What is left of an ended run, as data that any process can file into history."""

from __future__ import annotations

import pickle

from shoal.client.planning import known_plan
from shoal.client.post_run_work import EndedRun, packed_plan
from shoal.client.run import Run
from shoal.metadata.history import RESUMED, RunRecord, text_of
from shoal.types import RunId
from shoal.workflow.outline import Outline


def ended_run(run: Run, platform: str = "") -> EndedRun:
    """The data of an ended run on a platform of this name."""
    plan, planned, predict = run.plan, run.planned, run.was_predicted
    latency, special = run.settings.latency, planned.name is None
    return EndedRun(
        _record(run, platform),
        pickle.dumps(Outline.of(run.workflow), 5),
        run.records,
        next(iter(plan.configurations)) if plan.flexible else plan.workers,
        run.preview.constants,
        run.needs,
        plan=planned.name,
        own=packed_plan(known_plan(run.preview, latency)) if predict and special else None,
        pool=run.preview.conditions.pool() if predict or not special else None,
        predict=predict,
    )


def _record(run: Run, platform: str) -> RunRecord:
    """The record, without what is found in the workers' timelines."""
    outcome = RESUMED if run.outcome == "done" and run.tries > 1 else run.outcome
    return RunRecord(
        run=RunId(f"{run.id}-{run.tries}") if run.tries > 1 else run.id,
        name=text_of(run.name),
        key=text_of(run.workflow.key),
        fingerprint="",
        planner=text_of(run.plan.planner),
        tasks=len(run.workflow),
        workers=0,
        started=run.started,
        makespan=run.makespan,
        outcome=text_of(outcome),
        planning=run.preview.planning,
        sla=str(run.preview.sla),
        platform=platform,
    )
