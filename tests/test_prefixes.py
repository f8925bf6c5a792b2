"""Agents and their static prefixes, learnt from prompts: against a plain count, and under hostile clients."""

from __future__ import annotations

from array import array
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from topas.online.sglang.prefixes import (
    HEAD_TOKENS,
    MAX_SAMPLE_TOKENS,
    MIN_PREFIX_TOKENS,
    SAMPLES,
    UNSHARED,
    Agent,
    PrefixBook,
)

PREFIX = list(range(1000, 1100))


def prompt(own: int, prefix: list[int] | None = None, length: int = 20) -> list[int]:
    """Return a prompt: a prefix and tokens of its own."""
    return [*(PREFIX if prefix is None else prefix), *range(10_000 + 100 * own, 10_000 + 100 * own + length)]


def common(prompts: Any) -> int:  # noqa: ANN401  lists of tokens
    """Count the tokens with which all prompts begin."""
    count = 0
    for column in zip(*prompts, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def plain_prefix(samples: list[tuple[list[int], int | None]]) -> list[int]:
    """Return the prefix of a variant by its definition: every majority is tried."""
    cut = [tokens[:-1] if declared is None else tokens[:-1][:declared] for tokens, declared in samples]
    if len(cut) == 1:
        found = [] if samples[0][1] is None else cut[0]
    else:
        majorities = combinations(cut, len(cut) // 2 + 1)
        found = max((group[0][: common(group)] for group in majorities), key=len)
    return found if len(found) >= MIN_PREFIX_TOKENS else []


def test_a_first_prompt_has_no_prefix_but_the_declared_one() -> None:
    book = PrefixBook()
    assert book.place("a", None, "t1", prompt(1), None).prefix_tokens == 0
    agent = book.place("b", None, "t1", prompt(1), 50)
    assert agent.prefix.tolist() == PREFIX[:50]
    assert agent.prefix_tokens == 50


def test_two_tasks_that_share_a_prefix_show_it() -> None:
    book = PrefixBook()
    first = book.place("a", "salt", "t1", prompt(1), None)
    second = book.place("a", "salt", "t2", prompt(2), None)
    assert second is first
    assert (first.id, first.salt) == ("a", "salt")
    assert first.prefix.tolist() == PREFIX


def test_rounds_of_one_task_show_no_prefix_however_much_they_share() -> None:
    book = PrefixBook()
    for rounds in range(1, 6):
        assert book.place("a", None, "t1", prompt(1, length=50 * rounds), None).prefix_tokens == 0
    assert book.place("a", None, "t2", prompt(2), None).prefix.tolist() == PREFIX


def test_a_prefix_is_read_only_and_is_replaced_only_when_it_changes() -> None:
    book = PrefixBook()
    for task in range(2):
        agent = book.place("a", None, str(task), prompt(task), None)
    before = agent.prefix
    assert book.place("a", None, "2", prompt(2), None).prefix is before
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 1
    longer = [*PREFIX, *range(2000, 2050)]
    for task in range(3, 3 + SAMPLES):
        agent = book.place("a", None, str(task), prompt(task, longer), None)
    assert agent.prefix.tolist() == longer
    assert before.tolist() == PREFIX


def test_the_prefix_never_holds_a_whole_prompt() -> None:
    book = PrefixBook()
    for task in range(3):
        agent = book.place("a", None, str(task), PREFIX, 5000)
    assert agent.prefix.tolist() == PREFIX[:-1]


def test_what_is_short_is_no_prefix() -> None:
    book = PrefixBook()
    for declared, tokens in ((MIN_PREFIX_TOKENS - 1, 0), (MIN_PREFIX_TOKENS, MIN_PREFIX_TOKENS)):
        for task in range(3):
            agent = book.place(f"a{declared}", None, str(task), prompt(task), declared)
        assert agent.prefix_tokens == tokens


def test_a_prompt_that_lacks_the_prefix_is_of_no_agent() -> None:
    book = PrefixBook()
    for task in range(3):
        book.place("a", None, str(task), prompt(task), None)
    for odd in (PREFIX[:90], [*PREFIX[:60], *range(500, 600)], PREFIX):
        agent = book.place("a", None, "odd", odd, None)
        assert (agent.id, agent.prefix_tokens) == (UNSHARED, 0)


def test_other_content_or_salt_under_a_name_is_a_variant_of_its_own() -> None:
    book = PrefixBook()
    other = list(range(3000, 3100))
    for task in range(3):
        one = book.place("a", None, str(task), prompt(task), None)
        two = book.place("a", None, str(task), prompt(task, other), None)
        three = book.place("a", "salt", str(task), prompt(task), None)
    assert [agent.id for agent in (one, two, three)] == ["a", "a#2", "a#3"]
    assert [agent.prefix.tolist() for agent in (one, two, three)] == [PREFIX, other, PREFIX]
    assert {agent.id: agent for agent in book} == {"a": one, "a#2": two, "a#3": three}


def test_requests_without_a_name_find_those_they_share_with() -> None:
    book = PrefixBook()
    other = list(range(3000, 3100))
    assert book.place(None, None, "t", prompt(0), None).id == UNSHARED
    one = book.place(None, None, "u", prompt(1), None)
    two = [book.place(None, None, task, prompt(k, other), None) for k, task in enumerate("tu")][-1]
    assert (one.id, one.prefix.tolist()) == ("shared-1", PREFIX)
    assert (two.id, two.prefix.tolist()) == ("shared-2", other)


def test_names_that_look_like_ours_do_not_collide() -> None:
    book = PrefixBook()
    agents = []
    for k, name in enumerate(["a#2", "shared-1", UNSHARED, "a", "a", None]):
        mine = list(range(5000 + 200 * k, 5100 + 200 * k))
        agents.append([book.place(name, None, str(t), prompt(t, mine), None) for t in range(2)][-1])
    assert [agent.id for agent in agents] == ["a#2", "shared-1", f"{UNSHARED}#2", "a", "a#3", "shared-2"]


@pytest.mark.parametrize(
    "form", [list, tuple, lambda t: array("q", t), np.array, lambda t: np.array(t, np.int32)]
)
def test_tokens_come_in_any_form(form: Any) -> None:  # noqa: ANN401  a conversion
    book = PrefixBook()
    for task in range(2):
        agent = book.place("a", None, str(task), form(prompt(task)), None)
    assert agent.prefix.tolist() == PREFIX
    assert agent.prefix.dtype == np.int64


@pytest.mark.parametrize("tokens", [[], [1], [-1] * 50, [2**31] * 50])
def test_odd_prompts_have_no_prefix(tokens: list[int]) -> None:
    book = PrefixBook()
    for task in range(3):
        assert book.place("a", None, str(task), tokens, 40).prefix_tokens == 0
        assert book.place(None, None, str(task), tokens, 40).prefix_tokens == 0


def test_a_prefix_is_remembered_up_to_a_length() -> None:
    tokens = np.arange(MAX_SAMPLE_TOKENS + 100)
    agent = PrefixBook().place("a", None, "t", tokens, len(tokens))
    assert agent.prefix_tokens == MAX_SAMPLE_TOKENS


@given(
    spare=st.integers(0, 2),
    hostile=st.lists(
        st.tuples(st.integers(HEAD_TOKENS, len(PREFIX)), st.booleans(), st.none() | st.integers(0, 10_000)),
        max_size=3,
    ),
    declared=st.none() | st.integers(HEAD_TOKENS, len(PREFIX)),
    order=st.randoms(use_true_random=False),
)
def test_a_minority_neither_shrinks_nor_lengthens_a_prefix(
    spare: int,
    hostile: list[tuple[int, bool, int | None]],
    declared: int | None,
    order: Any,  # noqa: ANN401  a source of chance
) -> None:
    honest = min(max(len(hostile) + 1 + spare, 2), SAMPLES - len(hostile))
    clients = [(f"h{k}", prompt(k), declared) for k in range(honest)]
    for k, (share, alike, said) in enumerate(hostile):
        own = range(7000, 7200) if alike else range(8000 + 200 * k, 8200 + 200 * k)
        clients.append((f"x{k}", [*PREFIX[:share], *own], said))
    order.shuffle(clients)
    book = PrefixBook()
    for task, tokens, said in clients:
        book.place("a", None, task, tokens, said)
    shared = max((agent.prefix.tolist() for agent in book), key=len)
    assert shared == PREFIX[:declared]


SHARED = st.sampled_from([0, 10, 31, 32, 33, 40, 60, 100])


@given(
    st.lists(
        st.tuples(st.integers(0, 11), SHARED, st.integers(1, 4), st.none() | st.integers(0, 130)),
        min_size=1,
        max_size=30,
    )
)
def test_the_prefix_is_that_of_the_definition(calls: list[tuple[int, int, int, int | None]]) -> None:
    book = PrefixBook()
    variants: dict[tuple[int, ...], dict[int, tuple[list[int], int | None]]] = {}
    for task, share, own, declared in calls:
        tokens = [*PREFIX[:share], *[own] * 10, *PREFIX[:20]]
        head = tokens[:-1][: min(HEAD_TOKENS, len(tokens) - 1 if declared is None else declared)]
        samples = variants.setdefault(tuple(head), {})
        samples.pop(task, None)
        samples[task] = (tokens, declared)
        if len(samples) > SAMPLES:
            del samples[next(iter(samples))]
        expected = plain_prefix(list(samples.values()))
        agent = book.place("a", None, str(task), tokens, declared)
        assert agent.prefix_tokens < len(tokens)
        assert agent.prefix.tolist() == tokens[: agent.prefix_tokens]
        if tokens[:-1][: len(expected)] == expected:
            assert agent.prefix.tolist() == expected
        else:
            assert agent.id == UNSHARED


def test_memory_is_bounded_and_the_least_recently_used_agents_go() -> None:
    book = PrefixBook(max_agents=3)
    for name in "abcad":
        for task in range(2):
            book.place(name, None, str(task), prompt(task, [ord(name)] * 100), None)
    assert {agent.id for agent in book} == {"c", "a", "d"}


def test_agents_in_use_are_not_forgotten_and_without_room_there_is_no_new_one() -> None:
    book = PrefixBook(max_agents=2)

    def both(name: str, keep: set[str]) -> Agent:
        return [
            book.place(name, None, str(task), prompt(task, [ord(name)] * 100), None, keep=keep)
            for task in range(2)
        ][-1]

    assert both("a", set()).id == "a"
    assert both("b", {"a"}).id == "b"
    assert both("c", {"a", "b"}).prefix_tokens == 0
    assert both("c", {"b"}).id == "c"
    assert {agent.id for agent in book} == {"b", "c"}


def test_without_room_for_tokens_prompts_are_cut_before_agents_are_forgotten() -> None:
    book = PrefixBook(max_tokens=1500)
    for task in range(6):
        for name in "abcdef":
            agent = book.place(name, None, str(task), prompt(task, [ord(name)] * 100), None)
    assert agent.prefix_tokens == 100
    assert len(list(book)) == 6
    assert book.tokens <= 1500
    for name in "ghijklmnopqrstuvwxyz":
        for task in range(2):
            book.place(name, None, str(task), prompt(task, [ord(name)] * 100), None)
            assert book.tokens <= 1500


def test_prompts_without_a_common_beginning_do_not_add_up() -> None:
    book = PrefixBook(max_agents=4, max_tokens=5000)
    for k in range(300):
        agent = book.place("writer", None, str(k), prompt(k, [k] * 40), None)
        assert (agent.id, agent.prefix_tokens) == ("writer", 0)
        assert book.place(f"writer-{k}", None, str(k), prompt(k, [k] * 40), None).prefix_tokens == 0
    assert book.tokens <= 5000
    assert list(book) == []
    assert len(book._ids) <= 5


class Server(RuleBasedStateMachine):
    """A book under any clients: its agents are told apart, and in use they stay what they are."""

    @initialize()
    def start(self) -> None:
        """Begin with little room."""
        self.book = PrefixBook(max_agents=3, max_tokens=2000)
        self.in_use: dict[str, Agent] = {}

    @rule(
        client=st.tuples(
            st.sampled_from([None, "a", "b", "a#2", "shared-1", UNSHARED]),
            st.sampled_from([None, ("x", None)]),
            st.integers(0, 9),
        ),
        share=SHARED,
        kind=st.integers(0, 3),
        declared=st.none() | st.integers(-1, 200),
        stays=st.booleans(),
    )
    def request(
        self, client: tuple[Any, Any, int], share: int, kind: int, declared: int | None, *, stays: bool
    ) -> None:
        """Place a request; it may stay in the engine."""
        name, salt, task = client
        tokens = [*[kind] * 16, *PREFIX[:share], task, *range(share)]
        agent = self.book.place(name, salt, str(task), tokens, declared, keep=set(self.in_use))
        assert agent.prefix.tolist() == tokens[: agent.prefix_tokens]
        assert agent.prefix_tokens < len(tokens)
        assert not agent.prefix_tokens or agent.salt == salt
        assert self.in_use.get(agent.id, agent) is agent
        if stays:
            self.in_use[agent.id] = agent

    @rule()
    def all_done(self) -> None:
        """Have all requests leave the engine."""
        self.in_use.clear()

    @invariant()
    def agents_are_told_apart(self) -> None:
        """Check ids, bounds and the account of memory."""
        agents = list(self.book)
        ids = [agent.id for agent in agents]
        assert len(set(ids)) == len(ids) <= 3
        assert UNSHARED not in ids
        for agent in agents:
            assert self.in_use.get(agent.id, agent) is agent
        held = 0
        for variant in self._variants():
            texts = [variant.shared, *(sample for sample, _ in variant.samples.values())]
            held += sum({id(text): len(text) for text in texts}.values())
        assert self.book.tokens * 4 == held

    def _variants(self) -> list[Any]:
        return [*self.book._known.values(), *self.book._new.values()]


Server.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestServer = Server.TestCase
