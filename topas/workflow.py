"""Workflows: a DAG of stages, each run by one agent (paper section III)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from topas.errors import InputError
from topas.wire import StageProfile, StageSpec, order_of

__all__ = ["Dag", "StageProfile", "StageSpec", "Workflow", "ancestors", "dag_of", "workflow_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Dag:
    """The precedence structure of a workflow; equal structures are one object (see :func:`dag_of`).

    ``names`` are in topological order (ties by name); ``before[k]`` and ``after[k]`` hold the indices
    of the direct predecessors and successors of stage ``k``; ``depth[k]`` is the number of stages on
    the longest path that ends just before ``k``.
    """

    names: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    depth: tuple[int, ...]
    index: Mapping[str, int]

    def __len__(self) -> int:
        """Return the number of stages."""
        return len(self.names)


def dag_of(after: Mapping[str, Sequence[str]], field: str = "stages") -> Dag:
    """Build the DAG in which stage ``v`` starts after all of ``after[v]``.

    Raises
    ------
    InputError
        if there is no stage, a predecessor is unknown or named twice, or the stages form a cycle.
    """
    return _intern(tuple((name, tuple(before)) for name, before in after.items()), field)


@lru_cache(maxsize=4096)
def _intern(spec: tuple[tuple[str, tuple[str, ...]], ...], field: str) -> Dag:
    if not spec:
        raise InputError("expected at least one stage", field=field)
    order = order_of(dict(spec), field)
    return _structure(order, frozenset((other, name) for name, before in spec for other in before))


@lru_cache(maxsize=4096)
def _structure(order: tuple[str, ...], edges: frozenset[tuple[str, str]]) -> Dag:
    index = {name: k for k, name in enumerate(order)}
    before: list[list[int]] = [[] for _ in order]
    after: list[list[int]] = [[] for _ in order]
    for tail, head in sorted(edges):
        before[index[head]].append(index[tail])
        after[index[tail]].append(index[head])
    depth = [0] * len(order)
    for k in range(len(order)):
        depth[k] = max((depth[p] + 1 for p in before[k]), default=0)
    return Dag(order, tuple(map(tuple, before)), tuple(map(tuple, after)), tuple(depth), index)


@lru_cache(maxsize=4096)
def ancestors(dag: Dag, stage: int) -> frozenset[int]:
    """Return the indices of all stages that come before a stage, directly or not."""
    found: set[int] = set()
    left = [*dag.before[stage]]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += dag.before[one]
    return frozenset(found)


@dataclass(frozen=True, slots=True, eq=False)
class Workflow:
    """A named DAG whose stage ``k`` belongs to agent ``agents[k]``; ``profiles[k]`` may be unknown."""

    name: str
    dag: Dag
    agents: tuple[str, ...]
    profiles: tuple[StageProfile | None, ...]

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """Return the description of each stage, in the order of the DAG."""
        names, before = self.dag.names, self.dag.before
        return tuple(
            StageSpec(name, self.agents[k], tuple(names[p] for p in before[k]), self.profiles[k])
            for k, name in enumerate(names)
        )


def workflow_of(name: str, stages: Iterable[StageSpec], field: str = "stages") -> Workflow:
    """Build the workflow of some stages.

    Raises
    ------
    InputError
        as :func:`dag_of` does.
    """
    of = {spec.name: spec for spec in stages}
    dag = dag_of({spec.name: spec.after for spec in of.values()}, field)
    ordered = [of[stage] for stage in dag.names]
    return Workflow(name, dag, tuple(s.agent for s in ordered), tuple(s.profile for s in ordered))
