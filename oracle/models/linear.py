"""Linear programs built block by block, solved by HiGHS, with a bound that does not trust the solver.

A program is ``min c x`` subject to ``row_low <= A x <= row_high`` and ``low <= x <= high`` with all of
``low``, ``high`` finite. For any row prices y of the right sign,

    sum_i (y_i > 0 ? y_i row_low_i : y_i row_high_i) + sum_j min(d_j low_j, d_j high_j),   d = c - A'y

is a lower bound on its optimum (weak duality). It is computed here from the prices that the solver
returns, so neither its tolerances nor an early stop make a bound wrong; only rounding of doubles does,
for which :data:`MARGIN` and :data:`ROUNDING` are taken off. With integer variables the solver's own bound
counts, less MARGIN; if it has none yet, that of the prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.extra import quiet_highs, solver_module
from topas.residual import FloatArray, IntArray

MARGIN = 1e-7
"""Share of the sum of absolute terms that is taken off a bound for rounding."""
ROUNDING = 1e-13
"""Share of the absolute terms of each ``d_j`` that is taken off, times the largest ``x_j``."""

Values = float | FloatArray


@dataclass(frozen=True, slots=True)
class LinearAnswer:
    """A proved lower bound on the program's optimum, and the solver's own word on how it ended."""

    bound: float
    status: str
    finished: bool


class LinearProgram:
    """Variables and rows, added as whole arrays."""

    def __init__(self) -> None:
        self.columns = 0
        self.rows = 0
        self._low: list[FloatArray] = []
        self._high: list[FloatArray] = []
        self._cost: list[FloatArray] = []
        self._row_low: list[FloatArray] = []
        self._row_high: list[FloatArray] = []
        self._entries: list[tuple[IntArray, IntArray, FloatArray]] = []
        self._integer: list[IntArray] = []

    def variables(self, *shape: int, high: Values, low: Values = 0.0, integer: bool = False) -> IntArray:
        """Add an array of variables and return their numbers; both limits must be finite."""
        size = int(np.prod(shape))
        numbers = np.arange(self.columns, self.columns + size, dtype=np.int64).reshape(shape)
        self.columns += size
        for store, value in ((self._low, low), (self._high, high), (self._cost, 0.0)):
            store.append(np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), shape)).ravel())
        if integer:
            self._integer.append(numbers.ravel())
        return numbers

    def constrain(
        self, *terms: tuple[Values, IntArray], low: Values = -np.inf, high: Values = np.inf
    ) -> IntArray:
        """Add a row for each position of the terms' arrays and return their numbers.

        Row k says ``low_k <= sum of value_k * x[array[k]] <= high_k``.
        """
        size = len(terms[0][1])
        numbers = self.empty(size, low=low, high=high)
        for value, columns in terms:
            self.add(numbers, columns, value)
        return numbers

    def empty(self, size: int, *, low: Values = -np.inf, high: Values = np.inf) -> IntArray:
        """Add rows without terms yet and return their numbers."""
        numbers = np.arange(self.rows, self.rows + size, dtype=np.int64)
        self.rows += size
        for store, value in ((self._row_low, low), (self._row_high, high)):
            store.append(np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), (size,))))
        return numbers

    def add(self, rows: IntArray, columns: IntArray, value: Values) -> None:
        """Add ``value_k * x[columns[k]]`` to row ``rows[k]``."""
        self._entries.append(
            (rows, columns, np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), rows.shape)))
        )

    def reward(self, columns: IntArray, value: float) -> None:
        """Add ``-value`` to the cost of these variables."""
        cost = np.concatenate(self._cost)
        np.subtract.at(cost, columns.ravel(), value)
        self._cost = [cost]

    def solve(self, *, time_limit_s: float, seed: int = 0) -> LinearAnswer:
        """Minimise; a program with integer variables is solved as such.

        Raises
        ------
        InputError
            if HiGHS is not installed.
        """
        highspy: Any = quiet_highs()
        sparse: Any = solver_module("scipy.sparse")
        join = np.concatenate
        at_row, at_column, values = (join(part) for part in zip(*self._entries, strict=True))
        matrix = sparse.csr_matrix((values, (at_row, at_column)), shape=(self.rows, self.columns))
        matrix.sum_duplicates()
        cost, low, high = join(self._cost), join(self._low), join(self._high)
        row_low, row_high = join(self._row_low), join(self._row_high)

        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.columns, self.rows
        program.col_cost_, program.col_lower_, program.col_upper_ = cost, low, high
        program.row_lower_, program.row_upper_ = row_low, row_high
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = matrix.indptr
        program.a_matrix_.index_ = matrix.indices
        program.a_matrix_.value_ = matrix.data
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)  # noqa: FBT003  HiGHS's own signature
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("random_seed", seed)
        solver.setOptionValue("time_limit", float(time_limit_s))
        if self._integer:
            kinds = np.zeros(self.columns, dtype=np.int64)
            kinds[join(self._integer)] = 1
            whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
            program.integrality_ = [whole if kind else real for kind in kinds]
        else:
            # An interior point is near enough: the bound is computed from its prices.
            solver.setOptionValue("solver", "ipm")
            solver.setOptionValue("run_crossover", "off")
        solver.passModel(program)
        solver.run()
        status = solver.getModelStatus()
        name = str(solver.modelStatusToString(status))
        finished = status == highspy.HighsModelStatus.kOptimal
        if self._integer:
            found = float(solver.getInfo().mip_dual_bound)
            if np.isfinite(found):
                return LinearAnswer(found - MARGIN * abs(found), name, finished)
        # An early stop may leave prices that are worse than none.
        tried = [np.zeros(self.rows)]
        prices = np.asarray(solver.getSolution().row_dual, dtype=np.float64)
        if prices.shape == (self.rows,) and np.isfinite(prices).all():
            tried.append(prices)
        bounds = [dual_bound(matrix, cost, (low, high), (row_low, row_high), each) for each in tried]
        return LinearAnswer(max(bounds), name, finished)


def dual_bound(
    matrix: Any,  # noqa: ANN401  a sparse matrix of SciPy
    cost: FloatArray,
    limits: tuple[FloatArray, FloatArray],
    row_limits: tuple[FloatArray, FloatArray],
    prices: FloatArray,
) -> float:
    """Return the bound of weak duality for any prices, less what rounding may have added.

    Prices of the wrong sign (toward a limit that is infinite) are set to zero first.
    """
    row_low, row_high = row_limits
    prices = np.where((prices > 0) & ~np.isfinite(row_low), 0.0, prices)
    prices = np.where((prices < 0) & ~np.isfinite(row_high), 0.0, prices)
    limit = np.where(prices > 0, row_low, np.where(prices < 0, row_high, 0.0))
    reduced = cost - matrix.T @ prices
    parts = np.concatenate([prices * limit, np.minimum(reduced * limits[0], reduced * limits[1])])
    widest = np.maximum(np.abs(limits[0]), np.abs(limits[1]))
    terms = (np.abs(cost) + abs(matrix).T @ np.abs(prices)) @ widest
    return float(parts.sum() - MARGIN * np.abs(parts).sum() - ROUNDING * terms)
