"""The figure: change of mean JCT by workload, prefix and load, fixed outputs beside variable ones."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

LEAST_SPAN = 0.05
"""The scale reaches at least so far to either side of no change."""
DARK_FROM = 0.6
"""A cell beyond this share of the scale has a white number."""


def figure_bytes(cells: pd.DataFrame, policy: str) -> bytes:
    """Return the figure as PNG; its bytes depend on the changes and the version of matplotlib alone."""
    stream = BytesIO()
    draw(cells, policy).savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()


def draw(cells: pd.DataFrame, policy: str) -> Figure:
    """Return the figure of one policy: a row a workload and prefix, a column a load, two panels."""
    own = cells[(cells["policy"] == policy) & (cells["metric"] == "mean_jct_s")]
    fixed = own["output_sigma"] == 0
    panels = {"fixed outputs": own[fixed], "variable outputs": own[~fixed]}
    panels = {title: members for title, members in panels.items() if len(members)}
    span = max([LEAST_SPAN, *own["change"].abs()])
    rows = [len(members.drop_duplicates(["workload", "prefix_tokens"])) for members in panels.values()]
    figure = Figure(
        figsize=(2.2 + 4.2 * len(panels), 1.8 + 0.36 * max(rows, default=1)), layout="constrained"
    )
    axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    image = None
    for panel, (title, members) in zip(axes, panels.items(), strict=False):
        image = _panel(panel, members, span)
        panel.set_title(title)
    figure.suptitle(f"{policy}: mean JCT against the best baseline of each cell, %")
    if image is not None:
        bar = figure.colorbar(image, ax=list(axes), shrink=0.8)
        bar.ax.yaxis.set_major_formatter(lambda value, _: whole_percent(value))
    return figure


def whole_percent(fraction: float) -> str:
    """Return a change in percent without decimals, signed unless it is none: ``-15``."""
    rounded = round(100 * fraction)
    return f"{rounded:+d}" if rounded else "0"


def _panel(axes: Axes, members: pd.DataFrame, span: float) -> AxesImage:
    wide = members.pivot_table(
        "change", ["workload", "prefix_tokens"], "load", sort=False, dropna=False, observed=True
    ).dropna(how="all")
    wide = wide[sorted(wide.columns)]
    values, loads = wide.to_numpy(), list(wide.columns)
    norm = TwoSlopeNorm(0.0, -span, span)
    image = axes.imshow(values, cmap="RdBu_r", norm=norm, aspect="auto")
    axes.set_xticks(range(len(loads)), [f"{load:g}" for load in loads])
    axes.set_yticks(
        range(len(wide)),
        [name if pd.isna(prefix) else f"{name}, {prefix // 1000:g}k" for name, prefix in wide.index],
    )
    axes.set_xlabel("load")
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if abs(value) > DARK_FROM * span else "black"
            axes.text(column, row, whole_percent(value), ha="center", va="center", color=colour, fontsize=8)
    return image
