"""An ended run as history records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.client.run import Run
from shoal.metadata.history import RESUMED, FiledRun, RunRecord, text_of
from shoal.metadata.quality import prediction_errors
from shoal.metadata.samples import decode_samples, encode_samples
from shoal.types import Resources, RunId, WorkerId


def filed(run: Run, platform: str = "") -> FiledRun:
    """The record, timelines and samples of an ended run on a platform of this name."""
    outcome = run.outcome
    tasks = list(run.workflow.calls)
    timeline = run.timeline
    workers = run.plan.workers_of(timeline.workers)
    needs = {**run.workflow.needs, **run.needs}
    constants = run.preview.constants
    samples = encode_samples(run.workflow, workers, timeline, constants, needs, platform)
    predicted: float | None = None
    quality: Mapping[str, float] = {}
    if outcome == "done" and run.tries > 1:
        outcome = RESUMED
    if outcome == "done":
        predicted = run.predicted(timeline)
    if predicted is not None:
        costs = run.preview.conditions.predictions.at("median")
        quality = prediction_errors(costs, decode_samples(samples).samples, tasks)
    record = replace(
        _record(run, outcome, workers), predicted=predicted, quality=quality, platform=platform
    )
    return FiledRun(record, tasks, run.records, samples)


def _record(run: Run, outcome: str, workers: Mapping[WorkerId, Resources]) -> RunRecord:
    resources = {str(resources) for resources in workers.values()}
    return RunRecord(
        run=RunId(f"{run.id}-{run.tries}") if run.tries > 1 else run.id,
        name=text_of(run.name),
        key=text_of(run.workflow.key),
        fingerprint=run.workflow.fingerprint(),
        planner=text_of(run.plan.planner),
        tasks=len(run.workflow),
        workers=len(workers),
        started=run.started,
        makespan=run.makespan,
        outcome=text_of(outcome),
        configuration=", ".join(sorted(resources)),
        planning=run.preview.planning,
        sla=str(run.preview.sla),
    )
