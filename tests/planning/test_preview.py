"""A preview says what a plan is predicted to do: how long it takes, what it costs, and why."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_examples import LARGE, MIDDLE, SMALL, Table, chain, conditions, fan, step, workflow

from shoal import Percentile, Preview, Resources, UniformPlanner, task
from shoal.errors import UsageError
from shoal.execution.costs import Costs
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.execution.pool import WarmPool
from shoal.planning import preview as previewing
from shoal.planning.base import validated
from shoal.planning.preview import DRAWS, level_of
from shoal.planning.prices import Prices, prices_of
from shoal.planning.report import report
from shoal.types import SLA, TaskId, WorkerId
from shoal.workflow import Output


class Varying(Table):
    """Each task takes one second, or two in one of five cases."""

    def at(self, sla: SLA) -> Costs:
        return Table(1.0 if sla == "median" else 2.0)

    def sampled(self, seed: int) -> Costs:
        rng = random.Random(seed)
        return Table({f"step#{i}": rng.choice((1, 1, 1, 1, 2)) for i in range(100)})


def planned(
    output: Output[Any], assignment: str, kinds: dict[str, Resources] | None = None
) -> Plan:
    """Build a plan from the number of each task's worker, as in `"0011"`."""
    flow = workflow(output)
    return Plan(
        flow,
        {
            name: Placement(WorkerId(f"w{owner}"), (kinds or {}).get(owner, SMALL))
            for name, owner in zip(flow.calls, assignment, strict=True)
        },
        planner="mine",
    )


def shown(
    output: Output[Any], assignment: str, costs: Table | None = None, **options: Any
) -> Preview:
    return Preview(planned(output, assignment), conditions(costs or Table()), **options)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow all draws, however slow the machine is."""
    monkeypatch.setattr(previewing, "DRAWING_SECONDS", 600.0)


@pytest.mark.usefixtures("unhurried")
def test_the_makespan_at_a_level_is_the_quantile_for_one_more_drawn_run() -> None:
    costs, flow = Varying(), workflow(fan(40))
    under = conditions(costs)
    plan = UniformPlanner().plan(flow, under)
    drawn = sorted(under.simulate(plan, costs.sampled(seed)).makespan for seed in range(DRAWS))
    assert len(set(drawn)) > 3
    low, high = drawn[35], drawn[36]
    assert Preview(plan, under, Percentile(90)).makespans == drawn
    assert Preview(plan, under, Percentile(90)).makespan == pytest.approx(low + (high - low) * 0.9)
    assert Preview(plan, under).makespan == pytest.approx((drawn[19] + drawn[20]) / 2)
    assert Preview(plan, under, Percentile(99.9)).makespan == drawn[-1]


def test_one_of_four_draws_is_exceeded_once_in_five() -> None:
    assert level_of([1.0, 2.0, 3.0, 4.0], 80) == pytest.approx(4.0)
    assert level_of([1.0, 2.0, 3.0, 4.0], 50) == pytest.approx(2.5)


@given(
    st.lists(st.floats(0.0, 1e6), min_size=1).map(sorted),
    st.floats(0.1, 99.9),
    st.floats(0.1, 99.9),
)
def test_a_higher_level_never_has_a_smaller_makespan(
    makespans: list[float], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert level_of(makespans, low) <= level_of(makespans, high) * (1 + 1e-12)
    assert makespans[0] <= level_of(makespans, low) <= makespans[-1] * (1 + 1e-12)


@pytest.mark.usefixtures("unhurried")
def test_not_everything_is_late_at_once() -> None:
    """A run with every cost at the level takes far longer, and is shown separately."""
    under = conditions(Varying())
    plan = UniformPlanner().plan(workflow(fan(40)), under)
    careful = Preview(plan, under, Percentile(90))
    assert Preview(plan, under).makespan < careful.makespan < 0.8 * careful.timeline.makespan
    assert "at the 90 % level (" in str(careful)
    assert "if every cost were at the 90 % level" in str(careful)
    assert "at the median (" in str(Preview(plan, under))


def test_a_few_runs_are_drawn_however_little_time_there_is() -> None:
    preview = shown(chain(3), "000", Varying())
    assert preview.predicted(0.0) > 0
    assert preview.predicted(0.0) == preview.predicted(600.0)


def tiny(nbytes: int = 100) -> Preview:
    """Preview one second on 2 GB, then two on 8 GB; each worker takes half a second to start."""
    costs = Table({"step#1": 2.0}, {"step#0": nbytes}, start=0.5)
    return Preview(planned(chain(2), "01", {"1": LARGE}), conditions(costs))


def test_cost_is_memory_held_from_invocation_to_leaving_and_invocations() -> None:
    cost = tiny().cost
    assert cost.gb_seconds == pytest.approx(2 * (0.5 + 1) + 8 * (0.5 + 2))
    assert (cost.invocations, cost.cold_starts, cost.nbytes) == (2, 2, 0)
    assert cost.price == pytest.approx(23 * 0.0000166667 + 2 * 0.0000002)
    assert tiny().makespan == pytest.approx(4.0)


def test_transfers_of_a_large_output_are_billed_on_both_workers() -> None:
    cost = tiny(10**7).cost
    assert cost.nbytes == 2 * 10**7
    assert cost.gb_seconds == pytest.approx(2 * (0.5 + 1 + 0.1) + 8 * (0.5 + 0.1 + 2))


def test_a_previews_price_follows_the_given_prices() -> None:
    preview = tiny()
    dear = Preview(preview.plan, replace(preview.conditions, prices=Prices("ours", 1.0, 10.0)))
    assert dear.cost.price == pytest.approx(23 + 20)
    assert "$43 (ours)" in str(dear)


def test_without_a_price_list_only_gb_seconds_are_shown() -> None:
    preview = tiny()
    free = Preview(preview.plan, replace(preview.conditions, prices="none"))
    assert free.cost.price == 0
    assert "cost       23 GB-seconds, 2 invocations (no price list)" in str(free).splitlines()
    for text in (str(free), free.compare(free), report(free, free.timeline)):
        assert "$" not in text
        assert "price " not in text.replace("no price list", "")


def test_a_worker_has_and_costs_the_next_size_up() -> None:
    preview = tiny()
    under = replace(preview.conditions, memory_steps=(1024, 4096, 10_240))
    sized = validated(preview.plan, preview.plan.workflow, under)
    assert [worker.memory_mb for worker in sized.workers.values()] == [4096, 10_240]
    assert Preview(sized, under).cost.gb_seconds == pytest.approx(4 * (0.5 + 1) + 10 * (0.5 + 2))
    assert under.offered([SMALL, MIDDLE, LARGE]) == [Resources(4096), Resources(10_240)]


def test_resources_beyond_the_largest_size_stay_as_they_are() -> None:
    under = replace(conditions(Table()), memory_steps=(1024,))
    assert under.given(Resources(1000, 2.0)) == Resources(1024, 2.0)
    assert under.given(SMALL) == SMALL


def test_prices_are_chosen_by_name() -> None:
    assert prices_of("aws-lambda").gb_second == 0.0000166667
    with pytest.raises(
        UsageError, match="no prices for 'azure'; choose one of aws-lambda, aws-lambda"
    ):
        prices_of("azure")


def test_a_preview_as_text() -> None:
    preview = tiny(10**7)
    plan = replace(preview.plan, notes=("the goal was missed",))
    placements = dict(plan.placements)
    first, second = placements
    placements[first] = replace(placements[first], duplicable=True, prewarm=(Prewarm(LARGE),))
    placements[second] = replace(placements[second], preload=True)
    plan = replace(plan, placements=placements)
    lines = str(Preview(plan, preview.conditions, planning=0.25)).splitlines()
    assert lines[0] == "plan of 2 tasks by mine, from 5 runs, made in 250 ms"
    assert lines[1].startswith("makespan   3.70 s at the median (3.70 s if every cost")
    assert lines[2] == "workers    2: 1 of 2048 MB, 1 of 8192 MB; 1 cold start"
    assert lines[3].startswith("cost       20 GB-seconds, 2 invocations: $0.000334 (AWS Lambda")
    assert lines[4] == "moved      20.0 MB"
    assert lines[5] == "tasks      1 pre-loaded, 1 pre-warming, 1 duplicable"
    assert lines[6:] == ["note       the goal was missed"]


def test_a_cached_plan_shows_no_planning_time() -> None:
    assert str(tiny()).splitlines()[0] == "plan of 2 tasks by mine, from 5 runs"


def test_large_figures_are_shown_with_all_their_digits() -> None:
    lines = str(shown(chain(2), "01", Table(2500.0))).splitlines()
    assert lines[1].startswith("makespan   5,000 s at the median (5,000 s if every cost")
    assert lines[3].startswith("cost       10,000 GB-seconds, ")


@pytest.mark.slow
def test_workers_are_counted_like_tasks() -> None:
    flow = workflow(step(*(step() for _ in range(1200))))
    assignment = {task: Placement(WorkerId(f"w{i}"), SMALL) for i, task in enumerate(flow.calls)}
    lines = str(Preview(Plan(flow, assignment), conditions(Table()))).splitlines()
    assert lines[2].startswith("workers    1,201: 1,201 of 2048 MB; ")


def test_show_adds_a_chart() -> None:
    preview = tiny()
    text = preview.show(width=60)
    assert text.startswith(str(preview))
    chart = text.removeprefix(str(preview))
    assert "w0" in chart
    assert "w1" in chart
    assert "makespan 4.00 s" in chart
    assert max(map(len, chart.splitlines())) <= 80


def test_plans_are_compared_figure_by_figure() -> None:
    """While the second worker starts, the first one parks, and saves its output."""
    costs = Table(start=1.0)
    both = [shown(fan(2), assignment, costs) for assignment in ("0000", "0010")]
    rows = [line.split() for line in both[0].compare(both[1]).splitlines()]
    assert rows[0] == ["mine", "(1)", "mine", "(2)"]
    assert rows[1] == ["makespan", "5.00", "s", "5.00", "s", "+0%"]
    assert rows[2][0] == "GB-seconds"
    assert rows[3][0] == "price"
    assert rows[3][1].startswith("$")
    assert rows[4] == ["workers", "1", "2", "+100%"]
    assert rows[5] == ["cold", "starts", "1", "2", "+100%"]
    assert rows[6] == ["bytes", "moved", "0", "B", "200", "B"]
    assert " ".join(rows[7]) == "1 of 4 tasks run on a different worker"


@task(resources=SMALL)
def asking(*_: Any) -> None: ...


SIZES = {"step#0": 10**6, "step#1": 3 * 10**6}


@pytest.mark.parametrize(
    ("output", "assignment", "name", "reason"),
    [
        (lambda: asking(step()), "01", "asking#0", "because it requests these resources"),
        (lambda: chain(2), "00", "step#1", "because the plan has only one"),
        (lambda: step(step(), step()), "011", "step#0", "shares the worker with 0 other tasks"),
        (lambda: step(step(), step()), "011", "step#1", "shares the worker with 1 other task"),
        (lambda: chain(3), "100", "step#2", "because its whole input (3.00 MB) is made there"),
        (lambda: step(step(), step()), "011", "step#2", "most of its input is made there (3.00 MB"),
        (lambda: step(step(), step()), "100", "step#2", "most of its input is made there (3.00 MB"),
        (lambda: step(chain(3), chain(3)), "0001111", "step#6", "as much of its input is made"),
        (lambda: step(step(), step()), "010", "step#2", "where 1.00 MB of its 4.00 MB of"),
        (lambda: step(step(), step()), "012", "step#2", "to run in parallel, although its input"),
    ],
)  # fmt: skip
def test_a_tasks_placement_is_explained(
    output: Any, assignment: str, name: str, reason: str
) -> None:
    text = shown(output(), assignment, Table(sizes=SIZES)).explain(name)
    assert text.startswith(f"{name} runs on w")
    assert reason in text


def test_the_explanation_says_whether_a_task_is_critical() -> None:
    preview = shown(step(step(), step()), "010", Table({"step#0": 5.0}))
    assert preview.critical_path == ("step#0", "step#2")
    first, other, last = (preview.explain(f"step#{i}") for i in range(3))
    assert first.endswith("to begin at 0.00 s and take 5.00 s; it is on the critical path.")
    assert other.endswith("to begin at 0.00 s and take 1.00 s; it is not on the critical path.")
    assert last.endswith(
        "to begin at 5.00 s, after step#0, and take 1.00 s; it is on the critical path."
    )


def test_the_explanation_lists_a_tasks_optimizations() -> None:
    preview = tiny()
    placements = dict(preview.plan.placements)
    first = TaskId("step#0")
    placements[first] = replace(
        placements[first], preload=True, duplicable=True, prewarm=(Prewarm(LARGE), Prewarm(SMALL))
    )
    plan = replace(preview.plan, placements=placements)
    text = Preview(plan, preview.conditions).explain("step#0")
    assert text.endswith(
        " Its inputs are fetched as they are saved; it pre-warms 2 sandboxes for other tasks; "
        "workers that wait for it may run it too."
    )


def test_explaining_an_unknown_task_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"no task 'fly#1'; it has step#0, step#1\.$"):
        tiny().explain("fly#1")
    with pytest.raises(UsageError, match=r"; it has step#0, step#1, step#2, .+ and 4 more\.$"):
        shown(chain(9), "0" * 9).explain("fly")


@pytest.mark.parametrize(
    ("task", "meant"),
    [("step", "step#0"), ("stop#1", "step#1"), ("step#7", "step#0"), ("step#", "step#0")],
)
def test_explaining_an_unknown_task_suggests_the_closest(task: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"no task '{task}'; did you mean '{meant}'\\?$"):
        tiny().explain(task)


def test_a_plan_can_be_previewed_again_for_a_later_run() -> None:
    """The arguments differ and sandboxes are warm by now, but it isn't planned again."""
    before = tiny()
    before.planning = 9.0
    flow, constants = workflow(chain(2)), {TaskId("step#0"): {TaskId("c"): 7}}

    def pool() -> WarmPool[Resources]:
        made: WarmPool[Resources] = WarmPool(64, 99.0)
        made.release(made.acquire(SMALL, 0.0).sandbox, 0.0)  # type: ignore[union-attr]
        return made

    after = before.again(flow, constants, pool)
    assert after.plan.workflow is flow
    assert after.plan.placements == before.plan.placements
    assert after.constants == constants
    assert after.planning == 0.0
    assert before.timeline.makespan - after.timeline.makespan == pytest.approx(0.5)
    assert before.predicted(9.0) - after.predicted(9.0) == pytest.approx(0.5)
    assert after.again(flow, constants, pool).predicted(0.0) == after.predicted(9.0)


def test_a_preview_says_what_its_prediction_is_based_on() -> None:
    assert tiny().learnt
    assert tiny().basis == "5 runs"
    assert not shown(step(), "0", Table(basis="no history")).learnt
