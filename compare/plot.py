"""The figure: job completion time against the arrival rate, one line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from compare.change import JCT
from compare.comparison import Comparison
from topas.errors import InputError
from topas.files import whole_file

LOG_FROM = 10.0
"""A panel whose values span more than this factor has a logarithmic axis."""

LOG_TICKS = (1.0, 2.0, 5.0)
FIGURE = ("mean_jct_s", "p99_jct_s")
"""The paper's primary metrics, which its figures and tables show."""

EMPHASISED = ("topas", "topas-paper")
"""The first of these that a figure shows stands out."""
MARKERS = "osD^vPX*<>dph"
DASHES = ("-", (0, (5, 2)), (0, (2, 1)), (0, (5, 1, 1, 1)))
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#666666")
"""Okabe and Ito's colours, which colour-blind readers can tell apart; in grey, markers and dashes do it."""


def write_figure(comparison: Comparison, folder: Path) -> tuple[Path, ...]:
    """Write ``figure.png`` and ``figure.svg``: a column a workload and profile, mean above p99.

    Trace files have no arrival rate and no panel. The bytes depend only on the results and on the
    version of matplotlib.

    Raises
    ------
    InputError
        if there is nothing to draw.
    """
    figure = draw(comparison)
    paths = (folder / "figure.png", folder / "figure.svg")
    with mpl.rc_context({"svg.hashsalt": "topas"}):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            with whole_file(path, "wb") as stream:
                figure.savefig(stream, format=path.suffix[1:], dpi=150, metadata=metadata)
    return paths


def draw(comparison: Comparison) -> Figure:
    """Return the figure.

    Raises
    ------
    InputError
        if no policy has all of its cells at any arrival rate.
    """
    summary = comparison.summary
    drawn = summary[(summary["scope"] == "point") & summary["rate_per_s"].notna()]
    columns = list(drawn.groupby(["workload", "profile"], sort=False))
    if not columns:
        raise InputError("nothing to draw: no policy finished its cells at any arrival rate")
    figure = Figure(figsize=(1.2 + 3.1 * len(columns), 5.6), layout="constrained")
    axes = figure.subplots(len(FIGURE), len(columns), squeeze=False, sharex="col")
    for column, ((workload, profile), own) in enumerate(columns):
        for row, metric in enumerate(FIGURE):
            panel = axes[row][column]
            _panel(panel, own[own["metric"] == metric], comparison.policies)
            if column == 0:
                panel.set_ylabel(f"{JCT[metric]} (s)")
        axes[0][column].set_title(workload if len(set(drawn["profile"])) == 1 else f"{workload}, {profile}")
        axes[-1][column].set_xlabel("arrival rate (tasks/s)")
    lines = {line.get_label(): line for panel in axes.flat for line in panel.get_lines()}
    shown = [policy for policy in comparison.policies if policy in lines]
    figure.legend(
        [lines[policy] for policy in shown], shown, loc="outside lower center", ncols=5, frameon=False
    )
    return figure


def _panel(axes: Axes, own: pd.DataFrame, policies: Sequence[str]) -> None:
    emphasised = next((name for name in EMPHASISED if name in policies), None)
    for index, policy in enumerate(policies):
        line = own[own["policy"] == policy].sort_values(["rate_per_s", "value"])
        if line.empty:
            continue
        strong = policy == emphasised
        axes.plot(
            line["rate_per_s"],
            line["value"],
            label=policy,
            marker=MARKERS[index % len(MARKERS)],
            linestyle="-" if strong else DASHES[index % len(DASHES)],
            color="black" if strong else COLOURS[index % len(COLOURS)],
            linewidth=2.4 if strong else 1.2,
            markersize=5,
            zorder=3 if strong else 2,
        )
    if own["value"].max() > LOG_FROM * own["value"].min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=LOG_TICKS))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="both", linewidth=0.3, color="0.85")
