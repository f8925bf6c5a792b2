"""The referee's KV memory: the prefix tree of docs/model.md, E6 to E12 and E28, by search over all nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LATE = 1 << 20


@dataclass(eq=False)
class Node:
    """A run of KV tokens behind its parent; ``last`` counts uses, ``ready_s`` is None off the GPU."""

    parent: Node | None
    tokens: int
    agent: str
    users: int = 0
    ready_s: float | None = None
    on_host: bool = False
    last: float = 0
    children: list[Node] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Return the dynamic tokens from behind the prefix to here."""
        return 0 if self.parent is None else self.parent.end + self.tokens

    def path(self) -> Iterator[Node]:
        """Yield the nodes from here up to the prefix."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def idle(self) -> bool:
        """Return whether it is a leftover."""
        return self.ready_s is not None and not self.users

    @property
    def exists(self) -> bool:
        """Return whether it is anywhere."""
        return self.ready_s is not None or self.on_host


class KvCache:
    """Token-exact accounting; ``used`` + ``leftover`` never exceeds ``budget`` after :meth:`trim`.

    With ``steps``, the steps to execution of each agent, leftovers go by these instead of by age: contexts
    first, then the prefix that is wanted last (an agent without steps is not wanted).
    """

    def __init__(
        self, budget: int, prefixes: Mapping[str, int], *, host: bool, swap_s_per_token: float
    ) -> None:
        self.budget = budget
        self.used = 0
        self.leftover = 0
        self.loads = 0
        self._host = host
        self._swap_s = swap_s_per_token
        self._link_free_s = 0.0
        self._prefixes = {agent: Node(None, tokens, agent) for agent, tokens in prefixes.items()}
        self._since: list[str] = []
        self._tips: dict[tuple[str, str, int], Node] = {}
        self._clock = 0
        self.steps: Mapping[str, int] | None = None

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes, parents first."""
        todo = list(self._prefixes.values())
        while todo:
            node = todo.pop(0)
            yield node
            todo += node.children

    @property
    def active(self) -> Mapping[str, int]:
        """Return agents whose prefix is in use, with the number of requests that use it."""
        return {agent: node.users for agent, node in self._prefixes.items() if node.users}

    @property
    def resident(self) -> list[str]:
        """Return agents whose prefix is on the GPU or on its way there, as they came."""
        return [agent for agent in self._since if self._prefixes[agent].ready_s is not None]

    def picture(self) -> tuple[object, ...]:
        """Return all that the future depends on."""
        nodes = list(self.nodes())
        number = {node: k for k, node in enumerate(nodes)}
        facts = [
            (n.agent, number[n.parent] if n.parent else -1, n.tokens, n.users, n.ready_s, n.on_host)
            for n in nodes
        ]
        order = sorted((k for k, n in enumerate(nodes) if n.idle), key=lambda k: nodes[k].last)
        tips = sorted((key, number[node]) for key, node in self._tips.items())
        return (repr(facts), tuple(order), tuple(tips), self._link_free_s, self.used)

    def _tip(self, agent: str, task: str, stage: int) -> Node:
        """Return the end of a stage's context, as far as it exists."""
        node = self._tips.get((agent, task, stage), self._prefixes[agent])
        while node.parent is not None and not node.exists:
            node = node.parent
        return node

    def cached(self, agent: str, task: str, stage: int, reused: int) -> int:
        """Return how many tokens of a prompt are on the GPU: prefix, and context of the same stage."""
        if self._prefixes[agent].ready_s is None:
            return 0
        there = max(n.end for n in self._tip(agent, task, stage).path() if n.ready_s is not None)
        return self._prefixes[agent].tokens + min(there, reused)

    def acquire(self, agent: str, now_s: float) -> tuple[float, bool]:
        """Use a prefix; return when it is ready, and whether a prefill must compute it."""
        node, cold = self._prefixes[agent], False
        self._wake(node)
        if node.ready_s is None:
            self.loads += 1
            self._came(agent)
            cold = not node.on_host
            node.ready_s = now_s if cold else self._transfer(node.tokens, now_s)
        self._lease(node)
        return node.ready_s, cold

    def take_context(
        self, agent: str, task: str, stage: int, reused: int, now_s: float
    ) -> tuple[Node, float]:
        """Use a stage's context up to ``reused`` tokens; return its last node, and when it is there."""
        wanted = [n for n in self._tip(agent, task, stage).path() if n.parent and n.end - n.tokens < reused]
        if not wanted:
            return self._prefixes[agent], now_s
        if wanted[0].end > reused:
            wanted[0] = self._split(wanted[0], reused)
        for node in wanted:
            self._wake(node)
        missing = [node for node in wanted if node.ready_s is None]
        if missing:
            there_s = self._transfer(sum(node.tokens for node in missing), now_s)
            for node in missing:
                node.ready_s = there_s
        for node in wanted:
            self._lease(node)
        return wanted[0], max([now_s, *(node.ready_s or 0.0 for node in wanted)])

    def _split(self, node: Node, at: int) -> Node:
        parent = node.parent
        assert parent is not None
        upper = Node(parent, at - parent.end, node.agent, node.users, node.ready_s, node.on_host, node.last)
        parent.children[parent.children.index(node)] = upper
        node.tokens -= upper.tokens
        node.parent, upper.children = upper, [node]
        node.last -= 0.5  # a leaf is never younger than what it stands on
        return upper

    def _wake(self, node: Node) -> None:
        """Take a node that is about to be leased out of the leftovers."""
        if node.idle:
            self.leftover -= node.tokens

    def _lease(self, node: Node) -> None:
        node.users += 1
        if node.users == 1:
            self.used += node.tokens

    def release(self, path: str | Node) -> None:
        """Stop using a path; what nobody uses any more is a leftover, its last node the oldest."""
        for node in (self._prefixes[path] if isinstance(path, str) else path).path():
            node.users -= 1
            if not node.users:
                self.used -= node.tokens
                self.leftover += node.tokens
                self._use(node)

    def leave_context(
        self, agent: str, task: str, stage: int, tokens: int, behind: Node | None = None
    ) -> None:
        """Keep what a request has added behind its path as a leftover."""
        parent = behind or self._prefixes[agent]
        node = Node(parent, tokens, agent, ready_s=0.0)
        parent.children.append(node)
        self._tips[agent, task, stage] = node
        self.leftover += tokens
        self._use(node)

    def touch(self, agent: str, task: str, stage: int, reused: int) -> None:
        """Renew what is idle on a waiting request's path, as a look-up in a radix tree does."""
        last = self._tip(agent, task, stage) if reused else self._prefixes[agent]
        for node in last.path():
            if node.idle:
                self._use(node)

    def evict_prefix(self, agent: str, now_s: float) -> None:
        """Move an unused prefix off the GPU, with everything cached behind it."""
        while idle := self._leaves(agent):
            self._evict(min(idle, key=lambda node: node.last), now_s)

    def trim(self, now_s: float) -> None:
        """Evict leftovers until everything fits: least recently used leaves first, or by steps."""
        while self.leftover and self.used + self.leftover > self.budget:
            leaves = self._leaves()
            if self.steps is None:
                self._evict(min(leaves, key=lambda node: node.last), now_s)
            else:
                self._evict(min(leaves, key=self._wanted_last), now_s)

    def _wanted_last(self, node: Node) -> tuple[bool, int, float]:
        if node.parent is not None:
            return (False, 0, node.last)
        return (True, -(self.steps or {}).get(node.agent, LATE), node.last)

    def load_ahead(self, now_s: float) -> None:
        """Load the prefixes of agents that are one step away, over those that are wanted later."""
        steps = self.steps or {}
        for agent in sorted(name for name, count in steps.items() if count == 1):
            node = self._prefixes[agent]
            if node.ready_s is not None or not node.on_host:
                continue
            later = sum(
                other.tokens
                for other in self.nodes()
                if other.idle and (other.parent is not None or steps.get(other.agent, LATE) > 1)
            )
            if self.used + self.leftover - later + node.tokens <= self.budget:
                self.loads += 1
                self._came(agent)
                node.ready_s = self._transfer(node.tokens, now_s)
                self.leftover += node.tokens
                self._use(node)
                self.trim(now_s)

    def _leaves(self, agent: str | None = None) -> list[Node]:
        """Return the leftovers with nothing on the GPU behind them, of one agent or of all."""
        return [
            node
            for node in self.nodes()
            if node.idle
            and (agent is None or node.agent == agent)
            and all(child.ready_s is None for child in node.children)
        ]

    def _evict(self, node: Node, now_s: float) -> None:
        node.ready_s = None
        self.leftover -= node.tokens
        if self._host and not node.on_host:
            node.on_host = True
            self._transfer(node.tokens, now_s)

    def _came(self, agent: str) -> None:
        if agent in self._since:
            self._since.remove(agent)
        self._since.append(agent)

    def _use(self, node: Node) -> None:
        self._clock += 1
        node.last = self._clock

    def _transfer(self, tokens: int, now_s: float) -> float:
        self._link_free_s = max(self._link_free_s, now_s) + tokens * self._swap_s
        return self._link_free_s
