"""GreedyPack and Algorithm 1 once more: slow, on plain sets, from the paper's section IV-E.

Nothing is carried from one step to the next: what fits, what is uncovered and what a request gains is
worked out anew each time. Ties are those of the design: a higher score, more running requests, fewer
moved tokens, then the state that holds the first request, in canonical order, that only one of two holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from support_events import Parts, Reference, subsets


@dataclass(frozen=True)
class State:
    """A post-decision state; ``admit`` is in greedy order."""

    admit: tuple[str, ...]
    preempt: tuple[str, ...]
    parts: Parts
    running: tuple[str, ...]
    moved: int


def state_of(ref: Reference, admit: tuple[str, ...], preempt: tuple[str, ...]) -> State:
    """Return a state with its terms."""
    chosen = tuple(ref.chosen(admit, preempt))
    return State(admit, preempt, ref.parts(admit, preempt), chosen, ref.moved_tokens(chosen))


def greedy_pack(ref: Reference, prefixes: frozenset[str]) -> Iterator[State]:
    """Return every feasible intermediate allocation for one prefix set."""
    kept = [name for name, r in ref.running.items() if r["agent"] in prefixes]
    preempt = tuple(sorted(name for name in ref.running if name not in kept))
    if ref.cap and len(preempt) > ref.cap:
        return
    admit: list[str] = []

    def smallest(agent: str) -> int | None:
        sizes = [r["reserve_tokens"] for r in ref.waiting.values() if r["agent"] == agent]
        return min(sizes, default=None)

    def fits(extra: list[str]) -> bool:
        """Return whether a slot and room are left for every prefix that these leave uncovered."""
        chosen = [*kept, *admit, *extra]
        uncovered = prefixes - ref.agents_of(chosen)
        sizes = [smallest(agent) for agent in uncovered]
        if None in sizes:
            return False
        tokens = sum(ref.prefix[agent] for agent in prefixes) + sum(size for size in sizes if size)
        tokens += sum(ref.known[name]["reserve_tokens"] for name in chosen)
        admissions = len(admit) + len(extra) + len(uncovered)
        return (
            tokens <= ref.budget
            and (not ref.cap or admissions <= ref.cap)
            and (not ref.batch or len(kept) + admissions <= ref.batch)
        )

    def preference(name: str) -> tuple[bool, Fraction, bool]:
        """Return what makes a request the next choice, largest first."""
        request = ref.waiting[name]
        before = [other for other in admit if ref.waiting[other]["task"] == request["task"]]
        gain = ref.gain(request["task"], [*before, name]) - ref.gain(request["task"], before)
        tokens = request["reserve_tokens"]
        represented = {ref.known[other]["task"] for other in (*kept, *admit)}
        free = gain > 0 and tokens == 0
        ratio = Fraction(0) if free or gain == 0 else Fraction(gain, tokens)
        return (free, ratio, gain == 0 and request["task"] in represented)

    if not fits([]):
        return
    while True:
        if prefixes <= ref.agents_of([*kept, *admit]):
            yield state_of(ref, tuple(admit), preempt)
        fitting = [
            name
            for name in sorted(ref.waiting, key=ref.order)
            if name not in admit and ref.waiting[name]["agent"] in prefixes and fits([name])
        ]
        if not fitting:
            return
        admit.append(max(fitting, key=preference))  # the first of equals, in canonical order


def better(ref: Reference, one: State, other: State) -> bool:
    """Return whether a state is to be preferred; an empty state is the last resort."""
    if bool(one.running) != bool(other.running):
        return bool(one.running)
    left = (one.parts.score, len(one.running), -one.moved)
    right = (other.parts.score, len(other.running), -other.moved)
    if left != right:
        return left > right
    differing = sorted(set(one.running) ^ set(other.running), key=ref.order)
    return bool(differing) and differing[0] in one.running


class Search:
    """Algorithm 1; ``pairs`` and the repairs can be left out to see what only they find."""

    def __init__(
        self, ref: Reference, *, pairs: bool = True, first_repairs: bool = True, last_repairs: bool = True
    ) -> None:
        self.ref = ref
        self.pairs = pairs
        self.first_repairs = first_repairs
        self.last_repairs = last_repairs
        self.best: State | None = None

    def phi(self, prefixes: frozenset[str]) -> int | None:
        """Pack a prefix set, remember the best state, return the best score emitted for the set."""
        scores = []
        for state in greedy_pack(self.ref, prefixes):
            scores.append(state.parts.score)
            if self.best is None or better(self.ref, state, self.best):
                self.best = state
        return max(scores, default=None)

    def repair(self, prefixes: frozenset[str], pool: frozenset[str]) -> None:
        """Drop one agent, or swap it for one outside."""
        for gone in prefixes:
            self.phi(prefixes - {gone})
            for new in pool - prefixes:
                self.phi(prefixes - {gone} | {new})

    def best_growth(
        self, grown: frozenset[str], value: int | None, sets: Iterable[frozenset[str]]
    ) -> frozenset[str]:
        """Return the set with the best score if that improves on ``value``, else the set as it was."""
        found, top = grown, value
        for prefixes in sets:
            score = self.phi(prefixes)
            if score is not None and (top is None or score > top):
                found, top = prefixes, score
        return found

    def run(self) -> State | None:
        """Return the selected state, or None if no pack emits any."""
        ref = self.ref
        pool = ref.agents_of(ref.known)
        if len(pool) <= ref.params["M"]:
            for prefixes in subsets(sorted(pool)):
                self.phi(frozenset(prefixes))
            return self.best
        # A resident prefix that no request can use is idle in every state, so it is not grown from.
        grown = ref.resident & pool
        if self.first_repairs:
            self.repair(grown, pool)
        if self.phi(grown) is None:  # what is resident cannot all be used: grow from what is used
            grown = ref.agents_of(ref.running)
        paired = not self.pairs
        while True:
            value = self.phi(grown)
            rest = sorted(pool - grown)
            single = self.best_growth(grown, value, [grown | {a} for a in rest])
            if single != grown:
                grown = single
            elif not paired:
                paired = True
                double = self.best_growth(grown, value, [grown | {a, b} for a in rest for b in rest if a < b])
                if double == grown:
                    break
                grown = double
            else:
                break
        if self.last_repairs:
            self.repair(grown, pool)
        self.phi(ref.agents_of(ref.running))  # the incumbent, and what fits beside it
        return self.best
