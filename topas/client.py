"""What to send with a request, so that the scheduler knows the task, stage and agent behind it.

Only the standard library is needed, and nothing is sent from here: a call returns the ``extra_body`` that
the OpenAI client, and what is built on it, adds to the JSON of a request.

With the OpenAI client::

    from openai import OpenAI
    from topas.client import Task

    client = OpenAI(base_url="http://127.0.0.1:30000/v1", api_key="none")
    task = Task("report-4711", workflow="report", dag={
        "plan": {"agent": "planner", "after": []},
        "search": {"agent": "searcher", "after": ["plan"]},
        "write": {"agent": "writer", "after": ["search"]},
    })
    client.chat.completions.create(model="m", messages=[...], extra_body=task.call("plan"))
    # a stage of several requests: all but its last one say so
    client.chat.completions.create(model="m", messages=[...], extra_body=task.call("search", final=False))
    client.chat.completions.create(model="m", messages=[...], extra_body=task.call("search"))
    client.chat.completions.create(model="m", messages=[...], extra_body=task.call("write"))

With LangGraph, the node is the stage, and the thread (or the run) the task::

    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url="http://127.0.0.1:30000/v1", api_key="none", model="m")

    def plan(state, config):
        task = Task(config["configurable"]["thread_id"], workflow="report")
        answer = model.bind(extra_body=task.call("plan", "planner")).invoke(state["messages"])
        return {"messages": [answer]}

    graph.add_node("plan", plan)

``ChatOpenAI`` takes ``extra_body`` as a parameter of its own too, for a model that serves one stage alone; it
does not belong into ``model_kwargs``. Any other client sends the same JSON, at the top of the request's body.

Each task needs a name of its own: two runs at the same time under one name are taken for one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topas.errors import InputError
from topas.wire import KEY, MAX_BYTES, check_facts, order_of

Stage = Mapping[str, str | int | Sequence[str] | None]
"""A stage of a DAG: ``agent``, ``after`` and, if known, ``rounds``, ``input_tokens``, ``max_new_tokens``."""


def extra_body(  # noqa: PLR0913  a fact each
    *,
    task: str,
    workflow: str | None = None,
    stage: str | None = None,
    agent: str | None = None,
    final: bool | None = True,
    prefix_tokens: int | None = None,
    dag: Mapping[str, Stage] | None = None,
) -> dict[str, Any]:
    """Return the ``extra_body`` of one request.

    A DAG makes it a JSON text: between its processes SGLang carries one level of nesting only.

    Parameters
    ----------
    task : name of the run that the request belongs to, the same for all its requests.
    workflow : name of a workflow that the server's configuration has, or that ``dag`` describes.
    stage : stage of the workflow.
    agent : agent that asks; with ``dag`` and ``stage`` it is known already.
    final : whether this is the stage's last request; None if the caller cannot tell.
    prefix_tokens : length in tokens of the agent's static prefix, where the caller knows it.
    dag : the stages of the workflow, each with ``agent``, ``after`` (stages that must be complete before)
        and, if known, ``input_tokens`` and ``max_new_tokens`` of a request and ``rounds``, their number.

    Raises
    ------
    InputError
        (a ValueError) if the server would refuse a fact; the line names the field.
    """
    given: dict[str, object] = {
        "workflow": workflow,
        "task": task,
        "stage": stage,
        "agent": agent,
        "final": final,
        "prefix_tokens": prefix_tokens,
        "dag": {name: _plain(value) for name, value in dag.items()} if isinstance(dag, Mapping) else dag,
    }
    if task is None:
        raise InputError("expected the name of the task", field=f"{KEY}.task")
    facts = {key: value for key, value in given.items() if value is not None}
    stages = check_facts(facts)
    if stages is None:
        return {"custom_params": {KEY: facts}}
    order_of({spec.name: spec.after for spec in stages})
    text = json.dumps(facts, separators=(",", ":"))
    if len(text) > MAX_BYTES:
        raise InputError(f"expected at most {MAX_BYTES} bytes of JSON, found {len(text)}", field=KEY)
    return {"custom_params": {KEY: text}}


def _plain(stage: object) -> object:
    """Turn mappings and sequences into what JSON knows; anything else is left for the check to refuse."""
    if not isinstance(stage, Mapping):
        return stage
    return {
        key: list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else value
        for key, value in stage.items()
        if value is not None
    }


@dataclass(frozen=True, slots=True)
class Task:
    """One run of a workflow: what all its requests say alike.

    ``dag`` may be left out where the server's configuration has the workflow.
    """

    name: str
    workflow: str | None = None
    dag: Mapping[str, Stage] | None = None

    def call(
        self,
        stage: str | None = None,
        agent: str | None = None,
        *,
        final: bool | None = True,
        prefix_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Return the ``extra_body`` of one request of the task; see :func:`extra_body`."""
        return extra_body(
            task=self.name,
            workflow=self.workflow,
            stage=stage,
            agent=agent,
            final=final,
            prefix_tokens=prefix_tokens,
            dag=self.dag,
        )
