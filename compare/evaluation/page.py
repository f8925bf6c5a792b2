"""The pages of the evaluation in Markdown; nothing on them depends on a clock but the timings' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from compare.cases import CASES
from compare.evaluation.changes import JCT, Average, Change, Reached, Results, excludes_zero
from compare.evaluation.draw import Setting
from compare.evaluation.plan import Guard
from compare.report import markdown_table, number, percent
from compare.stats import Interval

BELOW = (
    "Change against the best baseline of that setting and metric, which is the one with the least mean over "
    "the seeds: ratio of the means over the seeds minus 1, negative is a reduction. Brackets: 95 % interval "
    "(Student's t of the differences, paired by seed)."
)


def with_brackets(change: Interval, *, places: str = "") -> str:
    """Return a change with its interval in percent."""
    brackets = ""
    if change.low is not None and change.high is not None:
        low, high = (percent(bound).removesuffix(" %") for bound in (change.low, change.high))
        brackets = f" [{low}, {high}]"
    return f"{percent(change.mean)}{brackets}{places}"


def cells_table(found: Sequence[Change], *, by_case: bool = False) -> str:
    """Return a row a setting and two columns a policy: mean and p99."""
    policies = list(dict.fromkeys(one.policy for one in found))
    known = {(one.setting, one.metric, one.policy): one for one in found}
    rows = []
    for setting in dict.fromkeys(one.setting for one in found):
        row = _place(setting, by_case=by_case)
        bests = [known.get((setting, metric, policies[0])) for metric in JCT]
        row.append(" / ".join("" if one is None else f"{one.best} {number(one.best_s)} s" for one in bests))
        for policy in policies:
            for metric in JCT:
                one = known.get((setting, metric, policy))
                row.append("failed" if one is None else with_brackets(one.paired))
        rows.append(row)
    heads = [f"{policy} {name}" for policy in policies for name in JCT.values()]
    return markdown_table([*_heads(by_case=by_case), "best baseline, mean / p99", *heads], rows)


def _heads(*, by_case: bool) -> list[str]:
    return ["case"] * by_case + ["workload", "prefix", "outputs", "load"]


def _place(setting: Setting, *, by_case: bool = False) -> list[str]:
    prefix = "" if setting.prefix_tokens is None else f"{setting.prefix_tokens}"
    case = [setting.case] * by_case
    return [*case, f"`{setting.workload}`", prefix, setting.outputs, f"{setting.load:g}"]


def averages_table(found: Sequence[Average]) -> str:
    """Return a row a workload, prefix and outputs, averaged over the loads."""
    policies = list(dict.fromkeys(one.policy for one in found))
    known = {(one.setting, one.metric, one.policy): one for one in found}
    rows = []
    for setting in dict.fromkeys(one.setting for one in found):
        row = _place(setting)[:3]
        for policy in policies:
            for metric in JCT:
                one = known.get((setting, metric, policy))
                row.append("failed" if one is None else with_brackets(one.change))
        rows.append(row)
    heads = [f"{policy} {name}" for policy in policies for name in JCT.values()]
    return markdown_table([*_heads(by_case=False)[:3], *heads], rows)


def targets_table(reached: Iterable[Reached]) -> str:
    """Return a row a target and metric: what was aimed at, what was found, by how much it was missed."""
    rows = []
    for one in reached:
        setting = Setting(one.target.workload, one.target.prefix_tokens, one.target.output_sigma, 0.0)
        row = [*_place(setting)[:3], JCT[one.metric], f"{one.aim:+.1f} %"]
        if one.found is None or one.missed_by is None:
            row += ["", "not run"]
        else:
            verdict = "met" if one.met else f"missed by {one.missed_by:.1f} points"
            row += [f"{one.found:+.1f} %", verdict]
        rows.append(row)
    return markdown_table(["workload", "prefix", "outputs", "metric", "target", "found", "verdict"], rows)


def guard_section(broken: Sequence[Change], guard: Guard, cells: int) -> str:
    """Return the list of the settings in which a policy is worse than the guard allows."""
    text = (
        f"In no setting may the mean exceed the best baseline's by more than {guard.mean:g} %, "
        f"nor p99 by more than {guard.p99:g} %. "
    )
    if not broken:
        return f"{text}It holds in all {cells} settings."
    rows = []
    for one in broken:
        excluded = excludes_zero(one.paired)
        surely = "" if excluded is None else "yes" if excluded else "no"
        rows.append([*_place(one.setting), JCT[one.metric], one.best, with_brackets(one.paired), surely])
    heads = [*_heads(by_case=False), "metric", "best baseline", "change", "interval excludes 0"]
    places = len({one.setting for one in broken})
    return f"{text}It fails in {places} of {cells} settings:\n\n{markdown_table(heads, rows)}"


def worst_table(found: Sequence[Change]) -> str:
    """Return a row a case: the worst change of each policy and metric, and where."""
    policies = list(dict.fromkeys(one.policy for one in found))
    rows = []
    for case in dict.fromkeys(one.setting.case for one in found):
        row = [case, CASES[case].about]
        for policy in policies:
            for metric in JCT:
                own = [
                    one
                    for one in found
                    if (one.setting.case, one.metric, one.policy) == (case, metric, policy)
                ]
                worst = max(own, key=lambda one: one.ratio, default=None)
                if worst is None:
                    row.append("failed")
                else:
                    where = f"<br>`{worst.setting.workload}`, load {worst.setting.load:g}"
                    row.append(with_brackets(worst.paired, places=where))
        rows.append(row)
    heads = [f"{policy} {name}" for policy in policies for name in JCT.values()]
    return markdown_table(["case", "what it is", *heads], rows)


def variants_table(found: Sequence[Change]) -> str:
    """Return a row a variant, a column a workload and kind of outputs: changes averaged over the loads."""
    places = list(dict.fromkeys((one.setting.workload, one.setting.outputs) for one in found))
    rows = []
    for variant in dict.fromkeys(one.policy for one in found):
        row = [variant]
        for workload, outputs in places:
            parts = []
            for metric in JCT:
                own = [
                    one.ratio
                    for one in found
                    if (one.policy, one.metric, one.setting.workload, one.setting.outputs)
                    == (variant, metric, workload, outputs)
                ]
                parts.append(percent(fmean(own)) if own else "failed")
            row.append(" / ".join(parts))
        rows.append(row)
    return markdown_table(["variant", *(f"{name}, {outputs}" for name, outputs in places)], rows)


def timings_table(results: Results, policies: Iterable[str]) -> str:
    """Return decision times in milliseconds by workload and policy."""
    rows = []
    for (workload, policy), own in timings(results, policies).items():
        rows.append([f"`{workload}`", policy, *(number(value) for value in own)])
    heads = [
        "workload",
        "policy",
        "decisions a run",
        "mean ms",
        "p99 ms, mean over runs",
        "p99 ms, worst run",
    ]
    return markdown_table(heads, rows)


def timings(
    results: Results, policies: Iterable[str]
) -> Mapping[tuple[str, str], tuple[float, float, float, float]]:
    """Return decisions a run, mean ms a decision, and p99 ms of a run: mean over the runs, and the worst."""
    wanted = set(policies)
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for run, metrics in results.items():
        if run.label in wanted:
            groups.setdefault((run.draw.setting.workload, run.label), []).append(metrics)
    found = {}
    for key, own in groups.items():
        decisions = sum(one["decisions"] for one in own)
        spent_ms = sum(one["decisions"] * one["decision_ms_mean"] for one in own)
        p99 = [one["decision_ms_p99"] for one in own]
        found[key] = (decisions / len(own), spent_ms / max(decisions, 1), fmean(p99), max(p99))
    return found
