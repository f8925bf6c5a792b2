"""Expected longest remaining path of a task and what completions take off it (paper Eq. 5-6).

``L(H) = E[LP(G, Z(H))]`` where a hypothetical completion of request r lowers the residual of its stage
to ``max(Z - D_r, 0)``. Completions compose by adding up, so L is a function of the set H.

A stage that every other unfinished stage precedes or follows lies on every path: it cuts the DAG, and
paths before and behind it add up. Only the part before the first cut can hold ready requests, so only
that part is evaluated again for each H; the rest is a constant. Of each part the expectation is exact
where the product of the supports is at most :data:`EXACT_OUTCOMES` (a chain is cut everywhere, hence
always exact); otherwise it is the mean over Latin hypercube scenarios drawn from a seed.

Evaluations are kept in flat arrays (:class:`PathStore`) that compiled code reads and fills.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topas.compiled import kernel
from topas.residual import FloatArray, IntArray, Residual
from topas.workflow import Dag

EXACT_OUTCOMES = 4096
MEMO_REQUESTS = 10
"""Tasks with at most so many ready requests keep a table of L over all subsets of them."""
STORE_CELLS = 4_000_000
"""A store is full when its outcome table or its memos have this many cells (32 MB)."""


class Paths(NamedTuple):
    """The arrays of a :class:`PathStore`: outcomes of parts, and memos of L.

    Row r of ``rows`` is (z offset, outcomes, stages, weight offset, offset into ``before_at``) of one part;
    the predecessors of its stage v are ``before[before_at[v] : before_at[v + 1]]`` from that offset on.
    """

    z: IntArray
    weights: FloatArray
    before: IntArray
    before_at: IntArray
    rows: IntArray
    memo: IntArray


@kernel
def mean_longest_path(paths, row, done_ns, done_at, finish):
    """Return E[LP] over the weighted outcomes of one part, after ``done_ns[done_at + v]`` of each stage v.

    ``finish`` is scratch. O(outcomes x (stages + edges)).
    """
    z, weights, before, before_at = paths.z, paths.weights, paths.before, paths.before_at
    rows = paths.rows
    z_at, outcomes, stages = rows[row, 0], rows[row, 1], rows[row, 2]
    weight_at, edge_at = rows[row, 3], rows[row, 4]
    total = 0.0
    for k in range(outcomes):
        longest = 0
        base = z_at + k * stages
        for v in range(stages):
            start = 0
            for e in range(before_at[edge_at + v], before_at[edge_at + v + 1]):
                other = finish[before[e]]
                start = max(start, other)
            left = z[base + v] - done_ns[done_at + v]
            if left > 0:
                start += left
            finish[v] = start
            longest = max(longest, start)
        total += weights[weight_at + k] * longest
    return total


@dataclass(frozen=True, slots=True)
class PathModel:
    """What L of a task is computed from, for tasks in one state with one set of ready requests.

    ``row`` indexes ``Paths.rows``; ``part`` maps a stage of the DAG to its place in the evaluated
    part (finished and later stages are absent); ``rest_ns`` is the expected path behind that part and
    ``path_ns`` is L before any completion. ``memo_at`` is where L over subsets of the ready requests is
    kept (-1: nowhere), in the order of ``PathStore.model``'s arguments.
    """

    row: int
    part: dict[int, int]
    rest_ns: float
    path_ns: int
    memo_at: int


class PathStore:
    """Outcome tables and memos of L, shared by all tasks in the same state; grows until it is full.

    A cache only: it never changes a result. Keys hold the residual objects themselves, which are
    shared until the history behind them changes.
    """

    def __init__(self) -> None:
        self.paths = Paths(
            z=np.zeros(1 << 14, dtype=np.int64),
            weights=np.zeros(1 << 12, dtype=np.float64),
            before=np.zeros(1 << 10, dtype=np.int64),
            before_at=np.zeros(1 << 10, dtype=np.int64),
            rows=np.zeros((1 << 8, 5), dtype=np.int64),
            memo=np.zeros(1 << 12, dtype=np.int64),
        )
        self._used = dict.fromkeys(Paths._fields, 0)
        self._models: dict[tuple[object, ...], PathModel] = {}
        self._rows: dict[tuple[object, ...], int] = {}

    @property
    def full(self) -> bool:
        """Return whether the next event should start a new store."""
        return max(self._used["z"], self._used["memo"], 64 * len(self._models)) > STORE_CELLS

    def model(
        self,
        dag: Dag,
        residuals: tuple[Residual, ...],
        work: tuple[tuple[int, int], ...],
        scenarios: int,
        seed: int,
    ) -> PathModel:
        """Return the path model of a task whose ready requests do ``work``.

        ``work`` lists (stage, service in ns) of each ready request, sorted; request k is bit k of the
        memo.
        """
        key = (dag, residuals, work, scenarios, seed)
        found = self._models.get(key)
        if found is None:
            found = self._build(dag, residuals, work, scenarios, seed)
            self._models[key] = found
        return found

    def expected_ns(self, model: PathModel, done_ns: Mapping[int, int]) -> int:
        """Return L(H) in integer nanoseconds, where H does ``done_ns[stage]`` of each stage's residual."""
        done = [done_ns.get(stage, 0) for stage in model.part]
        return int(np.rint(self._mean(model.row, done) + model.rest_ns))

    def outcomes(self, model: PathModel | None) -> tuple[IntArray, FloatArray, list[list[int]]]:
        """Return the evaluated part: outcomes (K x V, nanoseconds), K weights, predecessors by stage."""
        if model is None:
            return np.zeros((0, 0), dtype=np.int64), np.zeros(0), []
        paths = self.paths
        z_at, outcomes, stages, weight_at, edge_at = (int(x) for x in paths.rows[model.row])
        ends = paths.before_at[edge_at : edge_at + stages + 1]
        return (
            paths.z[z_at : z_at + outcomes * stages].reshape(outcomes, stages),
            paths.weights[weight_at : weight_at + outcomes],
            [[int(u) for u in paths.before[start:end]] for start, end in itertools.pairwise(ends)],
        )

    def _mean(self, row: int, done: list[int]) -> float:
        finish = np.zeros(len(done), dtype=np.int64)
        return float(mean_longest_path(self.paths, row, np.array(done, dtype=np.int64), 0, finish))

    def _build(
        self,
        dag: Dag,
        residuals: tuple[Residual, ...],
        work: tuple[tuple[int, int], ...],
        scenarios: int,
        seed: int,
    ) -> PathModel:
        parts = _parts(dag, _unfinished(dag, residuals))
        needed = {stage for stage, _ in work}
        last = max((i for i, part in enumerate(parts) if not needed.isdisjoint(part)), default=0)
        head = parts[0] if last == 0 and parts else tuple(s for part in parts[: last + 1] for s in part)
        rest_ns = 0.0
        for part in parts[last + 1 :]:
            if len(part) == 1:
                rest_ns += residuals[part[0]].mean_ns
            else:
                rest_ns += self._mean(self._row(dag, residuals, part, scenarios, seed), [0] * len(part))
        row = self._row(dag, residuals, head, scenarios, seed)
        path_ns = int(np.rint(self._mean(row, [0] * len(head)) + rest_ns))
        memo_at = -1
        if len(work) <= MEMO_REQUESTS:
            memo = np.full(1 << len(work), -1, dtype=np.int64)
            memo[0] = path_ns
            memo_at = self._append("memo", memo)
        return PathModel(row, {stage: k for k, stage in enumerate(head)}, rest_ns, path_ns, memo_at)

    def _row(
        self, dag: Dag, residuals: tuple[Residual, ...], part: tuple[int, ...], scenarios: int, seed: int
    ) -> int:
        """Return the row of a part's outcomes; parts with the same residuals share it."""
        key = (dag, part, tuple(residuals[k] for k in part), scenarios, seed)
        found = self._rows.get(key)
        if found is None:
            place = {stage: k for k, stage in enumerate(part)}
            names = [dag.names[k] for k in part]
            table, weights = _outcomes(names, [residuals[k] for k in part], scenarios, seed)
            before = [[place[p] for p in dag.before[stage] if p in place] for stage in part]
            edges = self._append("before", np.array([p for some in before for p in some], dtype=np.int64))
            ends = np.cumsum([0, *(len(some) for some in before)], dtype=np.int64)
            row = (
                self._append("z", table.ravel()),
                len(weights),
                len(part),
                self._append("weights", weights),
                self._append("before_at", edges + ends),
            )
            found = self._append("rows", np.array([row], dtype=np.int64))
            self._rows[key] = found
        return found

    def _append(self, name: str, block: npt.NDArray[np.generic]) -> int:
        start = self._used[name]
        need = start + len(block)
        array: npt.NDArray[np.generic] = getattr(self.paths, name)
        if need > len(array):
            grown = np.zeros((max(need, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
            grown[:start] = array[:start]
            self.paths = self.paths._replace(**{name: grown})
            array = grown
        array[start:need] = block
        self._used[name] = need
        return start


@lru_cache(maxsize=65536)
def _parts(dag: Dag, unfinished: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Split the unfinished stages at the stages that lie on every path, in topological order.

    A stage cuts if everything unfinished before it in topological order precedes it and everything
    unfinished after it follows it.
    """
    ancestors: dict[int, set[int]] = {}
    for stage in unfinished:
        direct = [p for p in dag.before[stage] if p in ancestors]
        ancestors[stage] = set(direct).union(*(ancestors[p] for p in direct))
    parts: list[list[int]] = [[]]
    for place, stage in enumerate(unfinished):
        cuts = len(ancestors[stage]) == place and all(
            stage in ancestors[other] for other in unfinished[place + 1 :]
        )
        if cuts:
            parts += [[stage], []]
        else:
            parts[-1].append(stage)
    return tuple(tuple(part) for part in parts if part)


def _unfinished(dag: Dag, residuals: Sequence[Residual]) -> tuple[int, ...]:
    """Return the stages still to count: a stage without service counts while one before it does."""
    left: list[int] = []
    for stage, before in enumerate(dag.before):
        if not residuals[stage].finished or any(p in left for p in before):
            left.append(stage)
    return tuple(left)


def _outcomes(
    names: list[str], residuals: list[Residual], scenarios: int, seed: int
) -> tuple[IntArray, FloatArray]:
    """Return the joint outcomes (K x V, nanoseconds) of independent stages and their K weights."""
    if not residuals:
        return np.zeros((1, 0), dtype=np.int64), np.ones(1)
    if len(residuals) == 1:
        return residuals[0].values_ns[:, np.newaxis], residuals[0].probs
    product = 1
    for residual in residuals:
        product *= residual.values_ns.size
    if product <= EXACT_OUTCOMES:
        grid = np.meshgrid(*(residual.values_ns for residual in residuals), indexing="ij")
        weight = np.ones(())
        for residual in residuals:
            weight = np.multiply.outer(weight, residual.probs)
        return np.stack([axis.ravel() for axis in grid], axis=1), np.ascontiguousarray(weight.ravel())
    table = [r.scenarios(name, scenarios, seed) for name, r in zip(names, residuals, strict=True)]
    return np.stack(table, axis=1), np.full(scenarios, 1.0 / scenarios)
