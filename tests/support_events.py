"""Small events for tests, and a slow reference for their scores.

An event is written as the JSON value of ``topas-event/1``. :class:`Reference` computes every term from
that JSON alone, with exact fractions and by listing all outcomes and all paths; it shares no code with
the library. :func:`events` draws random small events.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Raw = dict[str, Any]
NS = 1_000_000_000

PARAMS = {
    "beta": 1.0,
    "rho": 0.0,
    "age_scale_s": 10.0,
    "M": 6,
    "K": 0,
    "swap_s_per_token": 0.01,
    "decode_s_per_token": 0.01,
}


# ---------------------------------------------------------------------------------------------- builders


def stages_of(text: str) -> Raw:
    """Return the stages that ``"a=5 b<a=3|7 d<b,c=0"`` describes: name, predecessors, samples in seconds."""
    stages = {}
    for word in text.split():
        head, _, samples = word.partition("=")
        name, _, after = head.partition("<")
        stages[name] = {
            "after": after.split(",") if after else [],
            "residual_s": [float(x) for x in samples.split("|")],
        }
    return stages


def task_of(text: str) -> Raw:
    """Return a task; the text may begin with ``@arrival`` or ``@arrival/attained`` in seconds."""
    arrival, attained = "0", "0"
    if text.startswith("@"):
        first, _, text = text.partition(" ")
        arrival, _, attained = first[1:].partition("/")
    return {"arrival_s": float(arrival), "attained_s": float(attained or 0), "stages": stages_of(text)}


def request_of(text: str, *, running: bool) -> Raw:
    """Return a request from ``"id task.stage agent reserve service"`` and ``name=value`` words behind."""
    name, place, agent, reserve, service, *extra = text.split()
    task, _, stage = place.partition(".")
    request: Raw = {"id": name, "task": task, "stage": stage, "agent": agent}
    request |= {"reserve_tokens": int(reserve), "service_s": float(service)}
    given = dict(word.split("=") for word in extra)
    if running:
        request["generated_tokens"] = int(given.get("generated", 0))
        request["credit_s"] = float(given.get("credit", 0))
    if "arrival" in given:
        request["arrival_s"] = float(given["arrival"])
    if "cached" in given:
        request["cached_tokens"] = int(given["cached"])
    return request


def make_event(  # noqa: PLR0913  an event has that many parts
    *,
    budget: int,
    agents: str,
    tasks: Mapping[str, str],
    waiting: Sequence[str] = (),
    running: Sequence[str] = (),
    resident: str = "",
    reuse: Mapping[str, int] | None = None,
    time: float = 0.0,
    **params: float,
) -> Raw:
    """Return an event's JSON value; ``agents`` reads ``"A=100 B=50"``, the rest as the functions above."""
    return {
        "format": "topas-event/1",
        "time_s": time,
        "budget_tokens": budget,
        "params": PARAMS | params,
        "agents": {
            name: {"prefix_tokens": int(tokens)} for name, tokens in (w.split("=") for w in agents.split())
        },
        "resident": resident.split(),
        "reuse_counts": dict(reuse or {}),
        "tasks": {name: task_of(text) for name, text in tasks.items()},
        "waiting": [request_of(text, running=False) for text in waiting],
        "running": [request_of(text, running=True) for text in running],
    }


def shuffled(raw: Raw, seed: int) -> Raw:
    """Return the same event with its lists of requests and all its objects in another order."""
    random = Random(seed)  # noqa: S311  no secret

    def mixed(value: Any) -> Any:  # noqa: ANN401  any JSON value
        if not isinstance(value, dict):
            return value
        items = [(key, mixed(entry)) for key, entry in value.items()]
        random.shuffle(items)
        return dict(items)

    changed = mixed(raw)
    for name in ("waiting", "running", "resident"):
        changed[name] = random.sample(raw[name], len(raw[name]))
    for task in changed["tasks"].values():
        for stage in task["stages"].values():
            if isinstance(stage["residual_s"], list):
                stage["residual_s"] = random.sample(stage["residual_s"], len(stage["residual_s"]))
    return changed


# --------------------------------------------------------------------------------------------- reference


def nanoseconds(seconds: float) -> Fraction:
    """Return decimal seconds as an exact number of nanoseconds."""
    return Fraction(repr(seconds)) * NS


def whole(value: Fraction | Decimal) -> int:
    """Round to an integer, halves to even."""
    if isinstance(value, Decimal):
        return int(value.to_integral_value(ROUND_HALF_EVEN))
    return round(value)


def all_paths(after: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return every path from a stage without predecessors to one without successors."""
    following: dict[str, list[str]] = {name: [] for name in after}
    for name, before in after.items():
        for other in before:
            following[other].append(name)

    def onward(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not following[path[-1]]:
            yield path
        for name in following[path[-1]]:
            yield from onward((*path, name))

    return [path for name, before in after.items() if not before for path in onward((name,))]


def expected_path(
    after: Mapping[str, Sequence[str]], samples: Mapping[str, Sequence[int]], done: Mapping[str, int]
) -> Fraction:
    """Return E[LP(G, Z(H))] of Eq. 5 over all outcomes and paths; ``done`` is what H does to each stage."""
    paths = all_paths(after)
    names = list(samples)
    total = 0
    for outcome in itertools.product(*(samples[name] for name in names)):
        left = {name: max(z - done.get(name, 0), 0) for name, z in zip(names, outcome, strict=True)}
        total += max(sum(left[name] for name in path) for path in paths)
    return Fraction(total, math.prod(len(samples[name]) for name in names))


@dataclass(frozen=True)
class Parts:
    """The terms of Eq. 13 in nanoseconds."""

    admit: int
    move: int
    redo: int
    revoke: int
    reuse: int

    @property
    def score(self) -> int:
        """Return Eq. 13."""
        return self.admit - self.move - self.redo - self.revoke + self.reuse


class Reference:
    """One event, judged straight from the paper's equations."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.params = raw["params"]
        self.budget: int = raw["budget_tokens"]
        self.cap: int = self.params["K"]
        self.batch: int = self.params.get("max_running", 0)
        self.prefix = {name: entry["prefix_tokens"] for name, entry in raw["agents"].items()}
        self.resident = frozenset(raw["resident"])
        self.waiting: dict[str, Raw] = {r["id"]: r for r in raw["waiting"]}
        self.running: dict[str, Raw] = {r["id"]: r for r in raw["running"]}
        self.known = self.waiting | self.running
        self.after = {
            name: {stage: entry["after"] for stage, entry in task["stages"].items()}
            for name, task in raw["tasks"].items()
        }
        table = raw.get("samples", {})
        self.samples = {
            name: {
                stage: [
                    whole(nanoseconds(x))
                    for x in (
                        table[entry["residual_s"]]
                        if isinstance(entry["residual_s"], str)
                        else entry["residual_s"]
                    )
                ]
                for stage, entry in task["stages"].items()
            }
            for name, task in raw["tasks"].items()
        }
        self._gains: dict[tuple[str, frozenset[str]], Decimal] = {}

    # Eq. 5-7

    def left(self, task: str, completed: Sequence[str]) -> Fraction:
        """Return L of a task after the hypothetical completion of these waiting requests."""
        done: dict[str, int] = {}
        for name in completed:
            request = self.waiting[name]
            done[request["stage"]] = done.get(request["stage"], 0) + whole(nanoseconds(request["service_s"]))
        return expected_path(self.after[task], self.samples[task], done)

    def age(self, task: str) -> Decimal:
        """Return g_i of Eq. 12, to 40 digits."""
        waited = max(self.raw["time_s"] - self.raw["tasks"][task]["arrival_s"], 0.0)
        with localcontext(prec=40):
            ratio = Decimal(repr(waited)) / Decimal(repr(self.params["age_scale_s"]))
            return 1 + Decimal(repr(self.params["rho"])) * (1 + ratio).ln()

    def aged_gain(self, task: str, completed: Sequence[str]) -> Decimal:
        """Return ``g_i (L_i - L_i(H))`` with each L in whole nanoseconds, not rounded itself."""
        key = (task, frozenset(completed))
        if key not in self._gains:
            with localcontext(prec=40):
                path_ns = whole(self.left(task, ())) - whole(self.left(task, completed))
                self._gains[key] = self.age(task) * path_ns
        return self._gains[key]

    def gain(self, task: str, completed: Sequence[str]) -> int:
        """Return the aged gain of a set of completions in whole nanoseconds."""
        return whole(self.aged_gain(task, completed))

    def by_task(self, admit: Iterable[str]) -> dict[str, list[str]]:
        """Group admitted requests by task."""
        groups: dict[str, list[str]] = {}
        for name in admit:
            groups.setdefault(self.waiting[name]["task"], []).append(name)
        return groups

    def unsure_ns(self, admit: Iterable[str]) -> int:
        """Return how many aged gains lie so close to half a nanosecond that double precision may err."""
        gains = [self.aged_gain(task, names) for task, names in self.by_task(admit).items()]
        return sum(1 for gain in gains if abs(abs(gain - whole(gain)) - Decimal("0.5")) < Decimal("0.001"))

    # Eq. 2

    def agents_of(self, names: Iterable[str]) -> frozenset[str]:
        """Return the agents of these requests."""
        return frozenset(self.known[name]["agent"] for name in names)

    def chosen(self, admit: Iterable[str], preempt: Iterable[str]) -> list[str]:
        """Return Q'."""
        dropped = set(preempt)
        return [name for name in self.running if name not in dropped] + list(admit)

    def tokens(self, chosen: Sequence[str]) -> int:
        """Return the left side of Eq. 2."""
        prefixes = sum(self.prefix[agent] for agent in self.agents_of(chosen))
        return prefixes + sum(self.known[name]["reserve_tokens"] for name in chosen)

    def feasible(self, admit: Sequence[str], preempt: Sequence[str]) -> bool:
        """Return whether a state keeps Eq. 2, the caps and the batch limit."""
        chosen = self.chosen(admit, preempt)
        return (
            self.tokens(chosen) <= self.budget
            and (not self.cap or (len(admit) <= self.cap and len(preempt) <= self.cap))
            and (not self.batch or len(chosen) <= self.batch)
        )

    # Eq. 8-13

    def load(self, agent: str) -> Fraction:
        """Return the time to move an agent's prefix once, in nanoseconds."""
        return nanoseconds(self.params["swap_s_per_token"]) * self.prefix[agent]

    def parts(self, admit: Sequence[str], preempt: Sequence[str]) -> Parts:
        """Return the terms of a state."""
        now = self.agents_of(self.chosen(admit, preempt))
        moved = sum((self.load(agent) for agent in now ^ self.resident), Fraction(0))
        delayed = {self.waiting[r]["task"] for r in admit if self.waiting[r]["agent"] not in self.resident}
        redo = sum(
            nanoseconds(self.params["decode_s_per_token"]) * self.running[r]["generated_tokens"]
            for r in preempt
        )
        counts = self.raw["reuse_counts"]
        reuse = sum(
            Fraction(repr(self.params["beta"])) * counts.get(agent, 0) * self.load(agent) for agent in now
        )
        return Parts(
            admit=sum(self.gain(task, names) for task, names in self.by_task(admit).items()),
            move=whole(moved * len(delayed)),
            redo=whole(Fraction(redo)),
            revoke=sum(whole(nanoseconds(self.running[r]["credit_s"])) for r in preempt),
            reuse=whole(Fraction(reuse)),
        )

    # Order among states

    def order(self, name: str) -> tuple[float, str, str]:
        """Return the canonical order: earlier task, then task id, then request id."""
        task = self.known[name]["task"]
        return (self.raw["tasks"][task]["arrival_s"], task, name)

    def moved_tokens(self, chosen: Sequence[str]) -> int:
        """Return the prefix tokens that enter or leave."""
        return sum(self.prefix[agent] for agent in self.agents_of(chosen) ^ self.resident)

    # All states

    def states(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return every feasible (admit, preempt), the empty state included."""
        for admit in subsets(list(self.waiting)):
            for preempt in subsets(list(self.running)):
                if self.feasible(admit, preempt):
                    yield admit, preempt

    def optimum(self) -> int | None:
        """Return the best score of any feasible state; the empty one counts only if it is alone."""
        scores = [
            self.parts(admit, preempt).score
            for admit, preempt in self.states()
            if self.chosen(admit, preempt)
        ]
        if scores:
            return max(scores)
        preempt = tuple(self.running)
        return self.parts((), preempt).score if self.feasible((), preempt) else None


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return all subsets, smaller ones first."""
    return itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(len(names) + 1))


# ---------------------------------------------------------------------------------------------- strategy


def many(examples: int) -> settings:
    """Return Hypothesis settings for so many examples, the same in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


SHAPES = {
    "one": {"a": ()},
    "chain": {"a": (), "b": ("a",), "c": ("b",)},
    "fork": {"a": (), "b": ("a",), "c": ("a",), "d": ("a",)},
    "join": {"a": (), "b": (), "c": (), "d": ("a", "b", "c")},
    "diamond": {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
    "zigzag": {"a": (), "b": (), "c": ("a",), "d": ("a", "b")},
    "independent": {"a": (), "b": (), "c": ()},
}
AGENTS = ("A", "B", "C", "D", "E", "F", "G", "H")

# Whole multiples of 10 ms: with at most 3 samples a stage, an expected path is a multiple of 1/3^n ns and
# so never half a nanosecond; rounding has one right answer.
SECONDS = st.one_of(st.sampled_from([1, 2, 3, 5, 10]), st.integers(1, 3000).map(lambda x: x / 100))
SAMPLES = st.lists(st.one_of(SECONDS, st.just(0)), min_size=1, max_size=3)
RESERVES = st.sampled_from([0, 10, 10, 20, 30, 50, 75])


def counts_to(most: int) -> list[int]:
    """Return counts to draw from, large ones more often."""
    return [*range(most, -1, -1), *range(most, most // 2, -1)]


def chance(percent: int) -> st.SearchStrategy[bool]:
    """Return a coin; shrinks to False."""
    return st.integers(0, 99).map(lambda x: x >= 100 - percent)


@st.composite
def tasks_of(draw: st.DrawFn, count: int) -> Raw:
    """Draw tasks in progress: the finished stages are closed under predecessors."""
    tasks: Raw = {}
    for name in draw(st.permutations([f"t{k}" for k in range(count)])):
        shape = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
        finished: set[str] = set()
        for stage, after in shape.items():
            if finished.issuperset(after) and draw(chance(25)):
                finished.add(stage)
        tasks[name] = {
            "arrival_s": draw(st.sampled_from([0.0, 0.0, 4.0, 7.5])),
            "attained_s": draw(st.sampled_from([0.0, 1.5, 6.0])),
            "stages": {
                stage: {"after": list(after), "residual_s": [0.0] if stage in finished else draw(SAMPLES)}
                for stage, after in shape.items()
            },
        }
    return tasks


def ready_stages(task: Raw) -> list[str]:
    """Return unfinished stages all of whose predecessors are finished."""
    finished = {name for name, stage in task["stages"].items() if stage["residual_s"] == [0.0]}
    return [
        name
        for name, stage in task["stages"].items()
        if name not in finished and finished.issuperset(stage["after"])
    ]


@st.composite
def events(  # noqa: PLR0913
    draw: st.DrawFn,
    *,
    most_waiting: int = 5,
    most_running: int = 4,
    agent_counts: Sequence[int] = (3, 2, 4, 1),
    shrunk: bool = True,
    odd_places: bool = True,
    pool_limits: Sequence[int] = (0, 1, 2, 6),
) -> Raw:
    """Draw a small event.

    ``shrunk`` allows a budget below what runs already; ``odd_places`` allows requests at stages that
    are finished or not ready.
    """
    agents = AGENTS[: draw(st.sampled_from(list(agent_counts)))]
    prefix = {name: draw(st.sampled_from([0, 20, 40, 60, 100])) for name in agents}
    tasks = draw(tasks_of(draw(st.sampled_from([2, 3, 1, 4]))))
    running_counts = counts_to(most_running)
    places = [(name, stage) for name, task in tasks.items() for stage in ready_stages(task)]
    if not places or (odd_places and draw(chance(10))):
        places = [(name, stage) for name, task in tasks.items() for stage in task["stages"]]
    agent_of: dict[tuple[str, str], str] = {}
    ids = draw(st.permutations([f"r{k}" for k in range(most_waiting + most_running)]))

    def request(name: str) -> Raw:
        place = draw(st.sampled_from(places))
        agent = agent_of.setdefault(place, draw(st.sampled_from(agents)))
        return {
            "id": name,
            "task": place[0],
            "stage": place[1],
            "agent": agent,
            "reserve_tokens": draw(RESERVES),
            "service_s": draw(st.one_of(SECONDS, st.just(0))),
            "arrival_s": draw(st.sampled_from([0.0, 5.0, 8.0])),
            "cached_tokens": draw(st.sampled_from([0, 10, 20])),
        }

    waiting = [request(name) for name in ids[: draw(st.sampled_from(counts_to(most_waiting)))]]
    running = [
        request(name)
        | {
            "generated_tokens": draw(st.sampled_from([0, 3, 120])),
            "credit_s": draw(st.sampled_from([0.0, 0.0, 0.5, 4.25])),
        }
        for name in ids[most_waiting : most_waiting + draw(st.sampled_from(running_counts))]
    ]
    held = {r["agent"] for r in running}
    resident = held | {name for name in agents if draw(chance(35))}
    least = sum(prefix[a] for a in held) + sum(r["reserve_tokens"] for r in running)
    most = sum(prefix.values()) + sum(r["reserve_tokens"] for r in waiting + running)
    share = draw(st.sampled_from([10, 8, 7, 6, 5, 4, 3, 2, 1, 0]))
    budget = least + (most - least) * share // 10
    batch = draw(st.sampled_from([0, 0, 0, 0, 2, 3, 4]))
    if shrunk and draw(chance(7)):
        budget = least * share // 10
    elif batch:
        batch = max(batch, len(running))
    return {
        "format": "topas-event/1",
        "time_s": 8.0,
        "budget_tokens": budget,
        "params": {
            "beta": draw(st.sampled_from([0.0, 0.5, 1.0])),
            "rho": draw(st.sampled_from([0.0, 0.5, 2.0])),
            "age_scale_s": draw(st.sampled_from([1.0, 10.0])),
            "M": draw(st.sampled_from(list(pool_limits))),
            "K": draw(st.sampled_from([0, 0, 0, 2, 1])),
            "swap_s_per_token": draw(st.sampled_from([0.0, 0.001, 0.02, 0.05])),
            "decode_s_per_token": draw(st.sampled_from([0.0, 0.0125])),
            "max_running": batch,
        },
        "agents": {name: {"prefix_tokens": tokens} for name, tokens in prefix.items()},
        "resident": sorted(resident),
        "reuse_counts": {name: draw(st.sampled_from([2, 1, 3, 0])) for name in agents if draw(chance(60))},
        "tasks": tasks,
        "waiting": waiting,
        "running": running,
    }
