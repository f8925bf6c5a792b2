"""Workflows: a DAG of stages, each run by one agent (paper section III)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import networkx as nx

from topas.errors import InputError


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
    known = {name for name, _ in spec}
    if not known:
        raise InputError("expected at least one stage", field=field)
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(known))  # the cycle that an error shows must not depend on chance
    for name, before in spec:
        for other in before:
            if other not in known:
                raise InputError(f"unknown stage {other!r}", field=f"{field}.{name}.after")
            graph.add_edge(other, name)
        if len(set(before)) != len(before):
            raise InputError("a predecessor is named twice", field=f"{field}.{name}.after")
    try:
        order = tuple(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(edge[0] for edge in nx.find_cycle(graph))
        raise InputError(f"stages form a cycle: {cycle}", field=field) from None
    edges = frozenset(graph.edges)
    return _structure(order, edges)


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


@dataclass(frozen=True, slots=True)
class StageProfile:
    """What is known of a stage before it ever ran: the profiled execution of paper section IV-B."""

    rounds: int
    input_tokens: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Workflow:
    """A named DAG whose stage ``k`` belongs to agent ``agents[k]``; ``profiles[k]`` may be unknown."""

    name: str
    dag: Dag
    agents: tuple[str, ...]
    profiles: tuple[StageProfile | None, ...]
