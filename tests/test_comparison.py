"""Tables, page, screen and figure of a comparison whose numbers are known."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest

from compare.comparison import Comparison, markdown, results_table, screen, timings_table, write_report
from compare.page import number, percent, records
from compare.plot import draw, write_figure
from compare.source import Source
from compare.store import key_of
from compare.study import METRICS, Metrics, Played, Run, outcome_of
from topas.errors import InputError
from topas.profile import load_profile
from topas.sim.result import Tail

STUDY = load_profile("study")
POLICIES = ("fcfs", "lpm", "topas")
MEANS = {"fcfs": (100.0, 300.0), "lpm": (110.0, 150.0), "topas": (60.0, 120.0)}
"""By policy, at rates 0.1 and 0.2; seed 2 has a tenth more. p99 is 1.5 times as much, 2 for topas."""


def run(policy: str, rate: float, seed: int) -> Run:
    return Run(Source("dag-4", 5, seed, rate), policy, STUDY)


def played(policy: str, rate: float, seed: int) -> Played:
    mean = MEANS[policy][0 if rate == 0.1 else 1] * (1.1 if seed == 2 else 1.0)
    p99 = mean * (2.0 if policy == "topas" else 1.5)
    metrics = {**dict.fromkeys(METRICS, 1), "mean_jct_s": mean, "p99_jct_s": p99, "max_jct_s": 3 * mean}
    tails = [Tail(by, name, 5, mean, p99, 3 * mean) for by, name in (("workflow", "w"), ("agent", "A"))]
    return Played(Metrics(**metrics), tuple(tails))


ALONE = Run(Source("a|b.jsonl", 3, sha256="0" * 64), "topas", STUDY)
ONES = Played(Metrics(**dict.fromkeys(METRICS, 1)), ())


ALL = [(policy, rate, seed) for rate in (0.1, 0.2) for seed in (1, 2) for policy in POLICIES]


def comparison(
    keys: Sequence[tuple[str, float, int]] = ALL,
    failures: Mapping[Run, str] | None = None,
    baselines: Sequence[str] = ("fcfs", "lpm", "spf"),
) -> Comparison:
    found = {run(*key): played(*key) for key in keys}
    runs = [*found, *(failures or {})]
    return Comparison.of(
        "topas compare dag-4 -o out", runs, baselines, outcome_of(runs, found, failures or {})
    )


def rows_under(page: str, heading: str) -> list[dict[str, str]]:
    """Return the rows of the table under a heading, by column."""
    lines = page[page.index(heading) :].splitlines()[2:]
    table = [line for line in lines[: lines.index("", 1)] if line.startswith("|")]
    cells = [[item.strip() for item in line.strip("|").split("|")] for line in table]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_a_row_a_run_in_the_order_of_the_runs() -> None:
    table = results_table(comparison().outcome.runs)
    assert list(table[["policy", "rate_per_s", "seed"]].itertuples(index=False, name=None)) == ALL
    assert table["key"][0] == key_of(run("fcfs", 0.1, 1))
    assert table["mean_jct_s"][0] == 100.0
    assert table.dtypes["mean_jct_s"] == "float64"
    assert table.dtypes["preemptions"] == "int64"


def test_decision_times_are_only_in_the_timings() -> None:
    runs = comparison().outcome.runs
    assert not {"decision_ms_mean", "decision_ms_p99"} & set(results_table(runs).columns)
    timings = timings_table(runs)
    assert {"key", "policy", "decisions", "decision_ms_mean", "decision_ms_p99"} <= set(timings.columns)
    assert "mean_jct_s" not in timings.columns


def test_the_summary_holds_what_the_statistics_say() -> None:
    rows = [
        row
        for row in records(comparison().summary)
        if row["policy"] == "topas" and row["metric"] == "mean_jct_s"
    ]
    assert [(row["scope"], row["rate_per_s"]) for row in rows] == [
        ("point", 0.1),
        ("point", 0.2),
        ("average", None),
    ]
    assert [row["best_baseline"] for row in rows] == ["fcfs", "lpm", "lpm"]
    assert [row["cells"] for row in rows] == [2, 2, 4]
    assert rows[0]["value"] == pytest.approx(63)
    assert [row["change"] for row in rows] == pytest.approx([60 / 100 - 1, 120 / 150 - 1, 180 / 260 - 1])
    # topas is 40 below fcfs at the first seed and 44 at the second, of fcfs's mean of 105
    width = 12.7062 * (4 / 105) / 2
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((-0.4 - width, -0.4 + width), rel=1e-5)


def test_the_files_are_written_and_the_same_each_time(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_report(comparison(), tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == [
        "report.md", "results.csv", "results.parquet", "summary.csv", "tails.csv", "timings.csv",
    ]  # fmt: skip
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    write_report(comparison(), tmp_path)
    table = results_table(comparison().outcome.runs)
    parquet = pd.read_parquet(tmp_path / "results.parquet")
    pd.testing.assert_frame_equal(parquet, table, check_exact=True, check_dtype=False)
    text = pd.read_csv(tmp_path / "results.csv", dtype=str, keep_default_na=False)
    assert list(text.columns) == list(table.columns)
    for name in table.columns:
        told = ["" if pd.isna(value) else str(value) for value in table[name]]
        assert list(text[name]) == told


def test_the_page_says_what_was_run() -> None:
    page = markdown(comparison())
    assert "```sh\ntopas compare dag-4 -o out\n```" in page
    assert "12 of 12 cells finished" in page
    assert "- Workload `dag-4`: 5 tasks, rates 0.1, 0.2 tasks/s, seeds 1, 2, default lengths." in page
    assert "- Profile `study`: kv_budget_tokens 36000," in page
    assert "host_cache True, admission full, redo decode." in page
    assert "- Parameters: beta 1.0, rho 0.5, M 6, K 0, age factor 1.0." in page
    assert "- Policies: `fcfs` (baseline), `lpm` (baseline), `topas`." in page
    assert "Failed" not in page


def test_the_page_has_every_operating_point_with_the_best_of_a_row_bold() -> None:
    first, second = rows_under(markdown(comparison()), "## Mean JCT at every operating point")
    assert first["point"] == "0.1 tasks/s"
    assert first["fcfs"] == "105"  # the best baseline at this point
    # by hand: 10 and 11 of 105, and -40 and -44
    assert first["lpm"] == "115.5<br>+10.0 % [+3.9, +16.1]"
    assert first["topas"] == "**63**<br>-40.0 % [-64.2, -15.8]"
    assert second["lpm"] == "157.5"
    assert second["topas"] == "**126**<br>-20.0 % [-32.1, -7.9]"


def test_the_page_names_the_best_baseline_of_each_metric() -> None:
    rows = {row["metric"]: row for row in rows_under(markdown(comparison()), "## Averages over")}
    # by hand, lpm has (110 + 150) / 2 * 1.05 = 136.5 and topas 94.5
    assert rows["mean_jct_s"]["best baseline"] == "`lpm` 136.5"
    assert rows["mean_jct_s"]["topas"] == "**94.5**<br>-30.8 % [-49.4, -12.2]"
    # half more than 136.5, and twice 94.5
    assert rows["p99_jct_s"]["best baseline"] == "`lpm` 204.8"
    assert rows["p99_jct_s"]["topas"].startswith("**189**<br>-7.7 %")
    assert rows["requests_per_s"]["best baseline"] == "`fcfs` **1**"
    assert "fcfs" not in rows["mean_jct_s"]


def test_one_seed_has_no_interval() -> None:
    page = markdown(comparison([key for key in ALL if key[2] == 1]))
    assert rows_under(page, "## Mean JCT at")[0]["topas"] == "**60**<br>-40.0 %"


def test_a_failed_cell_is_listed_and_its_policy_left_out_of_its_averages() -> None:
    lost = ("lpm", 0.2, 2)
    page = markdown(comparison([key for key in ALL if key != lost], {run(*lost): "out of patience"}))
    assert "11 of 12 cells finished" in page
    assert "- dag-4, 0.2 tasks/s, seed 2, lpm: out of patience" in page
    first, second = rows_under(page, "## Mean JCT at every operating point")
    assert first["lpm"].startswith("115.5")
    assert second["lpm"] == "failed"
    averages = rows_under(page, "## Averages over")
    assert averages[0]["best baseline"].startswith("`fcfs`")


def test_tables_stand_even_if_no_policy_is_whole() -> None:
    keys = [("fcfs", 0.1, 1), ("lpm", 0.1, 2)]
    failed = {run("lpm", 0.1, 1): "lost", run("fcfs", 0.1, 2): "lost"}
    page = markdown(comparison(keys, failed))
    assert "2 of 4 cells finished" in page
    assert screen(comparison(keys, failed))


def test_without_a_baseline_the_page_says_so() -> None:
    page = markdown(comparison(baselines=()))
    assert "No baseline was run" in page
    assert "%" not in page[page.index("## Mean JCT") : page.index("## Tails")]


def test_a_bar_in_a_files_name_does_not_break_the_table() -> None:
    page = markdown(Comparison.of("topas", [ALONE], (), outcome_of([ALONE], {ALONE: ONES}, {})))
    assert "`a\\|b.jsonl`" in page
    assert "as it is" in page


def test_the_screen_shows_averages_with_the_best_starred() -> None:
    lines = screen(comparison()).splitlines()
    assert lines[0] == "dag-4, profile study, average over: 0.1 tasks/s, 0.2 tasks/s"
    assert lines[3].split() == ["fcfs", "210", "+53.8", "%", "315", "+53.8", "%", "630", "+53.8", "%"]
    assert lines[4].split() == ["lpm", "136.5", "0.0", "%", "204.8", "0.0", "%", "409.5", "0.0", "%"]
    rest = ["283.5", "*", "-30.8", "%"]
    assert lines[5].split() == ["topas", "94.5", "*", "-30.8", "%", "189", "*", "-7.7", "%", *rest]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123456, "0.01235"), (99.999, "100"), (1234.56, "1235"), (1e6, "1000000")]
)
def test_numbers_have_four_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(-0.152, "-15.2 %"), (0.1, "+10.0 %"), (-0.0001, "0.0 %"), (0.0, "0.0 %")]
)
def test_percentages_are_signed(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def test_the_figure_has_a_line_a_policy_in_each_panel() -> None:
    figure = draw(comparison())
    mean, p99 = figure.axes
    assert [line.get_label() for line in mean.get_lines()] == list(POLICIES)
    topas = mean.get_lines()[2]
    assert list(topas.get_xdata()) == [0.1, 0.2]
    assert list(topas.get_ydata()) == pytest.approx([63, 126])
    assert list(p99.get_lines()[0].get_ydata()) == pytest.approx([157.5, 472.5])
    assert [mean.get_title(), mean.get_ylabel(), p99.get_ylabel()] == ["dag-4", "mean JCT (s)", "p99 JCT (s)"]
    assert len({(line.get_marker(), line.get_linestyle()) for line in mean.get_lines()}) == len(POLICIES)


@pytest.mark.parametrize(
    ("policies", "bold"),
    [
        (("fcfs", "topas"), "topas"),
        (("fcfs", "topas-paper"), "topas-paper"),
        (("topas-paper", "topas"), "topas"),
        (("fcfs", "lpm"), None),
    ],
)
def test_the_products_policy_stands_out_or_else_the_papers(
    monkeypatch: pytest.MonkeyPatch, policies: tuple[str, ...], bold: str | None
) -> None:
    monkeypatch.setitem(MEANS, "topas-paper", (70.0, 130.0))
    found = {run(policy, 0.1, 1): played(policy, 0.1, 1) for policy in policies}
    figure = draw(Comparison.of("topas compare", [*found], ("fcfs",), outcome_of(found, found, {})))
    black = [line.get_label() for line in figure.axes[0].get_lines() if line.get_color() == "black"]
    assert black == ([] if bold is None else [bold])


def test_the_axis_is_logarithmic_only_if_values_span_more_than_ten_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [axes.get_yscale() for axes in draw(comparison()).axes] == ["linear", "linear"]
    monkeypatch.setitem(MEANS, "fcfs", (100.0, 700.0))
    assert [axes.get_yscale() for axes in draw(comparison()).axes] == ["log", "linear"]


def test_the_figure_is_written_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_figure(comparison(), tmp_path / name)
    for name, start in (("figure.png", b"\x89PNG"), ("figure.svg", b"<?xml")):
        first = (tmp_path / "a" / name).read_bytes()
        assert first.startswith(start)
        assert first == (tmp_path / "b" / name).read_bytes()


def test_there_is_no_figure_without_an_arrival_rate() -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        draw(Comparison.of("topas", [ALONE], (), outcome_of([ALONE], {ALONE: ONES}, {})))


def test_the_page_shows_the_tail_of_each_workflow_and_agent() -> None:
    first, second = rows_under(markdown(comparison()), "## Tails")
    assert [first["of"], first["names"], second["of"], second["names"]] == ["workflow", "`w`", "agent", "`A`"]
    # p99 as above; the largest are three times the means of seed 2 at 0.2: 330, 165 and 132
    assert [first[policy] for policy in POLICIES] == ["315 / 990", "204.8 / 495", "189 / 396"]


def test_the_csv_is_readable_by_the_standard_library(tmp_path: Path) -> None:
    write_report(comparison(), tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert len(rows) == len(ALL)
    assert rows[0]["load"] == ""
    assert float(rows[0]["mean_jct_s"]) == 100.0
