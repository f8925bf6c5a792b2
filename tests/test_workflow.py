"""The order of stages, what comes before a stage, and a workflow built from its stages and taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topas.errors import InputError
from topas.wire import StageProfile, StageSpec, order_of
from topas.workflow import ancestors, dag_of, workflow_of

Shape = dict[str, tuple[str, ...]]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Draw a DAG whose stages are given in any order of their names."""
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1))
    return {
        name: tuple(draw(st.lists(st.sampled_from(names[:k]), unique=True))) if k else ()
        for k, name in enumerate(names)
    }


@given(shapes())
def test_of_the_stages_that_may_be_next_the_first_by_name_is(shape: Shape) -> None:
    order: list[str] = []
    while len(order) < len(shape):
        order.append(min(name for name in shape if name not in order and set(shape[name]) <= set(order)))
    assert order_of(shape) == dag_of(shape).names == tuple(order)


@given(shapes())
def test_ancestors_are_all_that_a_stage_waits_for(shape: Shape) -> None:
    dag = dag_of(shape)
    for k, name in enumerate(dag.names):
        found = {dag.names[p] for p in ancestors(dag, k)}
        assert found == set(shape[name]).union(
            *({dag.names[p] for p in ancestors(dag, dag.index[other])} for other in shape[name])
        )


@given(shapes())
def test_a_workflow_is_its_stages_in_any_order(shape: Shape) -> None:
    specs = [
        StageSpec(name, name.upper(), tuple(sorted(after)), StageProfile(1, 2, 3) if after else None)
        for name, after in shape.items()
    ]
    workflow = workflow_of("w", specs)
    assert sorted(s._replace(after=tuple(sorted(s.after))) for s in workflow.stages) == sorted(specs)
    again = workflow_of("w", reversed(workflow.stages))
    assert (again.dag, again.agents, again.profiles) == (workflow.dag, workflow.agents, workflow.profiles)


@pytest.mark.parametrize("names", ["abc", "cba", "bca"])
def test_the_cycle_that_is_shown_does_not_depend_on_the_order_of_the_stages(names: str) -> None:
    after = {"a": ("c",), "b": ("a",), "c": ("b",)}
    with pytest.raises(InputError) as refusal:
        dag_of({name: after[name] for name in names})
    assert str(refusal.value) == "stages: stages form a cycle: 'a' -> 'b' -> 'c' -> 'a'"
