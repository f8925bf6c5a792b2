"""Prompts of a replay: random token ids, the same for the same seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topas.errors import InputError

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Vocab:
    """Token ids from ``low`` to ``high``, both included: a range that holds words in the served model.

    The default is valid in nearly every vocabulary and free of special tokens.

    Raises
    ------
    InputError
        unless 0 <= low < high.
    """

    low: int = 10
    high: int = 1000

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.low < self.high < 2**31:
            raise InputError(
                f"expected ids from 0 on, LO below HI, found {self.low}:{self.high}", field="vocab"
            )

    def __len__(self) -> int:
        """Return the number of ids."""
        return self.high - self.low + 1


class Prompts:
    """The token ids of agents' prefixes and of the rounds behind them.

    A prefix depends on the seed and the agent's name; two agents differ in their first token already, so
    that a server shares nothing between them. What follows depends on seed, task, stage and round.

    Raises
    ------
    InputError
        if there are more agents than token ids.
    """

    def __init__(self, agents: Mapping[str, int], seed: int, vocab: Vocab) -> None:
        if len(agents) > len(vocab):
            expected = f"expected at least {len(agents)} token ids, one for the start of each agent's prefix"
            raise InputError(f"{expected}, found {len(vocab)}", field="vocab")
        self._seed, self._vocab = seed, vocab
        turn = int(self._generator("turn").integers(len(vocab)))
        self._prefixes: dict[str, Tokens] = {}
        for rank, agent in enumerate(sorted(agents)):
            tokens = self._draw(agents[agent], "prefix", agent)
            tokens[:1] = vocab.low + (turn + rank) % len(vocab)
            self._prefixes[agent] = tokens

    def prefix(self, agent: str) -> Tokens:
        """Return an agent's static prefix."""
        return self._prefixes[agent]

    def dynamic(
        self,
        place: tuple[str, str, int],
        input_tokens: int,
        reused_tokens: int = 0,
        context: Sequence[int] | Tokens = (),
    ) -> Tokens:
        """Return a round's own ``input_tokens`` tokens; the first ``reused_tokens`` repeat ``context``.

        Where the context is shorter than what should repeat it, new tokens take its place.

        Parameters
        ----------
        place : task, stage and round.
        context : dynamic input and output of the stage's previous round.
        """
        tokens = self._draw(input_tokens, "round", *place)
        again = context[:reused_tokens]
        tokens[: len(again)] = again
        return tokens

    def whole(self, agent: str, dynamic: Tokens) -> Tokens:
        """Return the prompt of a request: never empty, which servers refuse, or crash on."""
        tokens = np.concatenate((self._prefixes[agent], dynamic))
        return tokens if len(tokens) else self._draw(1, "empty", agent)

    def _draw(self, size: int, *words: str | int) -> Tokens:
        low, high = self._vocab.low, self._vocab.high
        return self._generator(*words).integers(low, high, size, dtype=np.int32, endpoint=True)

    def _generator(self, *words: str | int) -> np.random.Generator:
        """Return the generator of a name: names are hashed, as Python's own hash differs between runs."""
        name = json.dumps([self._seed, *words]).encode()
        return np.random.default_rng(int.from_bytes(hashlib.blake2b(name, digest_size=16).digest()))
