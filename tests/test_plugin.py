"""The plugin's seams: what it offers and hooks, when it does nothing, and what it refuses."""

from __future__ import annotations

import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from importlib.metadata import EntryPoint, PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from compare.live.side_by_side import NATIVE
from topas.online.sglang import compat, metrics, plugin
from topas.online.sglang.compat import UnsupportedError, require_supported_mode, version_problem
from topas.online.sglang.facts import PACKED, read_facts
from topas.online.sglang.metrics import NoMetrics, metrics_for
from topas.policies import JointPolicy, QueuePolicy, get_policy, policy_names

SGLANG_POLICIES = {
    "lpm",
    "dfs-weight",
    "fcfs",
    "lof",
    "random",
    "routing-key",
    "hrrn",
    "shortest-prefill-first",
}
"""Policies of SGLang itself."""


@pytest.fixture(autouse=True)
def no_scheduling() -> Iterator[None]:
    """Begin and end without an active scheduling."""
    plugin._active.clear()
    yield
    plugin._active.clear()


# -------------------------------------------------------------------------------------------- what is offered


def test_the_policies_are_ours_and_none_is_sglangs() -> None:
    assert set(plugin.POLICIES) <= set(policy_names(on_request=True))
    assert not set(plugin.POLICIES) & SGLANG_POLICIES
    assert len(set(plugin.POLICIES)) == len(plugin.POLICIES)
    assert all(isinstance(get_policy(name), JointPolicy | QueuePolicy) for name in plugin.POLICIES)
    assert all(get_policy(name).name == name for name in plugin.POLICIES)


def test_every_policy_runs_in_sglang_is_its_own_or_is_refused() -> None:
    known = policy_names(on_request=True)
    assert sorted([*plugin.POLICIES, *plugin.SIMULATED, *NATIVE]) == sorted(known)
    assert NATIVE <= SGLANG_POLICIES


@pytest.mark.parametrize("policy", plugin.SIMULATED)
def test_a_policy_of_the_simulator_alone_is_refused_in_one_line(
    sglang: Hooks, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["launch", f"--schedule-policy={policy}"])
    with pytest.raises(SystemExit, match=rf"^topas: {policy} runs in the simulator only$"):
        plugin.register()
    assert sglang.choices == ["fcfs", "lpm"]
    with pytest.raises(UnsupportedError, match=rf"^topas: {policy} runs in the simulator only$"):
        plugin._around_validation(lambda *args: args, "this", policy, "tree")


def test_sglang_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["sglang.srt.plugins"]
    found = [EntryPoint(name, value, "sglang.srt.plugins").load() for name, value in named.items()]
    assert found == [plugin.register]


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("--schedule-policy topas", True),
        ("--schedule-policy=topas", True),
        ("--schedule-policy topas-paper", True),
        ("--port 1 --schedule-policy spf --tp 1", True),
        ("--schedule-policy lpm", False),
        ("--schedule-policy=lpm", False),
        ("--schedule-policy hrrn", False),
        ("--schedule-policy fcfs --served-model-name topas", False),
        ("--model topas", False),
        ("topas --schedule-policy", False),
        ("--schedule-policy=", False),
        ("", False),
    ],
)
def test_the_command_line_says_whether_one_of_them_was_chosen(line: str, *, asked: bool) -> None:
    assert plugin._asked_for(line.split()) is asked


class Hooks:
    """A stand-in for the packages of SGLang that registering touches."""

    def __init__(self) -> None:
        self.hooked: dict[str, tuple[Callable[..., Any], Enum]] = {}
        self.patched: set[str] = set()
        self.choices = ["fcfs", "lpm"]


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    hooks = Hooks()

    class HookType(Enum):
        BEFORE = "before"
        AFTER = "after"
        AROUND = "around"
        REPLACE = "replace"

    class HookRegistry:
        _patched = hooks.patched

        @staticmethod
        def register(target: str, hook: Callable[..., Any], kind: HookType) -> None:
            hooks.hooked[target] = (hook, kind)

    class ServerArgs:
        schedule_policy: str

    ServerArgs.__annotations__["schedule_policy"] = Annotated[
        str, "help", SimpleNamespace(choices=None), SimpleNamespace(choices=hooks.choices)
    ]
    modules = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.server_args": {"ServerArgs": ServerArgs},
        "sglang.srt.plugins": {},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": HookRegistry, "HookType": HookType},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(compat, "version", lambda _: compat.SUPPORTED[0])
    return hooks


def test_registering_offers_the_policies_once_and_hooks_each_seam(sglang: Hooks) -> None:
    plugin.register()
    plugin.register()
    assert sglang.choices == ["fcfs", "lpm", *plugin.POLICIES]
    assert {name: (hook, kind.value) for name, (hook, kind) in sglang.hooked.items()} == plugin._HOOKS
    assert all(name.startswith("sglang.srt.") for name in sglang.hooked)


def test_registering_reads_the_choices_as_python_does(sglang: Hooks) -> None:
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415  the stand-in

    plugin.register()
    hint = typing.get_type_hints(ServerArgs, include_extras=True)["schedule_policy"]
    assert hint.__metadata__[-1].choices is sglang.choices


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("0.5.23", None),
        ("0.5.23+cpu", None),
        ("0.5.23.post1", None),
        ("0.5.23.post1+cu129", None),
        ("0.5.24", "SGLang 0.5.24 is not supported; topas was tested with 0.5.23"),
        ("0.5.2", "SGLang 0.5.2 is not supported; topas was tested with 0.5.23"),
        (None, "SGLang is not installed"),
    ],
)
def test_only_tested_versions_are_supported(
    monkeypatch: pytest.MonkeyPatch, found: str | None, problem: str | None
) -> None:
    def installed(_: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    monkeypatch.setattr(compat, "version", installed)
    assert version_problem() == problem


@pytest.mark.parametrize("asked", [False, True])
def test_with_another_version_nothing_is_offered(
    sglang: Hooks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, asked: bool
) -> None:
    monkeypatch.setattr(compat, "version", lambda _: "9.9")
    monkeypatch.setattr(sys, "argv", ["launch", "--schedule-policy", "topas" if asked else "lpm"])
    if asked:
        with pytest.raises(SystemExit, match=r"topas: SGLang 9\.9 is not supported"):
            plugin.register()
    else:
        plugin.register()
    assert "topas is not available" in caplog.text
    assert sglang.choices == ["fcfs", "lpm"]
    assert sglang.hooked == {}


# ----------------------------------------------------------------------------------------- supported modes


def scheduler(**args: Any) -> SimpleNamespace:  # noqa: ANN401
    """Return a scheduler started in a supported mode, but for these arguments."""
    tree = type("UnifiedRadixCache", (), {"supports_mamba": lambda _: False})()
    return SimpleNamespace(
        schedule_policy="topas",
        server_args=SimpleNamespace(enable_metrics=False, **args),
        is_generation=True,
        is_hybrid_swa=False,
        tree_cache=tree,
        dllm_config=None,
    )


def test_a_plain_server_is_supported() -> None:
    require_supported_mode(scheduler())
    require_supported_mode(scheduler(tp_size=1, disaggregation_mode="null", speculative_algorithm=None))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"tp_size": 2}, "--tp-size"),
        ({"pp_size": 2}, "--pp-size"),
        ({"dp_size": 2}, "--dp-size"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"enable_priority_scheduling": True}, "--enable-priority-scheduling"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"hicache_storage_backend": "file"}, "storage backend"),
        ({"enable_streaming_session": True}, "--enable-streaming-session"),
    ],
)
def test_an_untested_option_is_refused_by_name(args: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        require_supported_mode(scheduler(**args))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("is_generation", False, "embedding"),
        ("is_hybrid_swa", True, "sliding-window"),
        ("dllm_config", object(), "diffusion"),
        ("tree_cache", type("UnifiedRadixCache", (), {"supports_mamba": lambda _: True})(), "Mamba"),
        ("tree_cache", type("ChunkCache", (), {"supports_mamba": lambda _: False})(), "ChunkCache"),
    ],
)
def test_an_untested_kind_of_model_or_cache_is_refused(name: str, value: object, text: str) -> None:
    started = scheduler()
    setattr(started, name, value)
    with pytest.raises(UnsupportedError, match=text):
        require_supported_mode(started)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(UnsupportedError, match=r"--tp-size above 1, --enable-lora"):
        require_supported_mode(scheduler(tp_size=2, enable_lora=True))


# ----------------------------------------------------------------------------------------------- the hooks


class Active:
    """A scheduling that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.fails = False

    def guard(self, what: str, call: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Run it, or the other thing."""
        try:
            return call()
        except RuntimeError:
            self.told.append(("failed", what))
            return otherwise()

    def prefill(self, original: Callable[[], Any], batch: object) -> Any:  # noqa: ANN401
        """Note the batch, and let the engine choose."""
        self.told.append(("prefill", batch))
        return original()

    def _note(self, *what: object) -> None:
        if self.fails:
            raise RuntimeError
        self.told.append(what)

    def arrived(self, req: object) -> None:
        """Note it."""
        self._note("arrived", req)

    def released(self, req: object) -> None:
        """Note it."""
        self._note("released", req)

    def aborted(self) -> None:
        """Note it."""
        self._note("aborted")

    def reset(self) -> None:
        """Note it."""
        self._note("reset")


def test_without_one_of_our_policies_the_hooks_do_nothing() -> None:
    started = scheduler()
    started.schedule_policy = "lpm"
    plugin._after_init(None, started)
    assert plugin._active == []

    def original(*args: object, **kwargs: object) -> object:
        return args, kwargs

    assert plugin._around_prefill(original, "this", 1, running_batch=2) == (("this", 1), {"running_batch": 2})
    assert plugin._around_validation(original, "this", "lpm", "tree") == (("this", "lpm", "tree"), {})
    assert plugin._after_arrival(None, None, "req") is None
    assert plugin._after_release(None, None, "req", checkpointed=True) is None
    assert plugin._after_abort() is None
    assert plugin._after_reset() is None


def test_the_hooks_tell_the_scheduling() -> None:
    active = Active()
    plugin._active.append(active)  # type: ignore[arg-type]
    batches = []

    def original(_: object, delayer: object = None, running_batch: object = None) -> object:
        batches.append((delayer, running_batch))
        return "answer"

    assert plugin._around_prefill(original, "this", None, "b1") == "answer"
    assert plugin._around_prefill(original, "this", delayer=3, running_batch="b2") == "answer"
    assert batches == [(None, "b1"), (3, "b2")]
    plugin._after_arrival(None, None, "r1", is_retracted=True)
    plugin._after_release(None, None, "r2", checkpointed=False)
    plugin._after_abort(None, None, "message")
    plugin._after_reset(None, None)
    assert active.told == [
        ("prefill", "b1"), ("prefill", "b2"), ("arrived", "r1"), ("released", "r2"), ("aborted",), ("reset",),
    ]  # fmt: skip


def test_a_hook_that_fails_does_not_fail_the_engine() -> None:
    active = Active()
    active.fails = True
    plugin._active.append(active)  # type: ignore[arg-type]
    plugin._after_arrival(None, None, "r1")
    plugin._after_release(None, None, "r2")
    assert active.told == [("failed", "arrival"), ("failed", "release")]


@pytest.mark.parametrize("policy", ["topas", "topas-paper", "spf"])
def test_sglangs_own_policy_object_orders_first_come_first_served(sglang: Hooks, policy: str) -> None:
    sglang.patched.update(plugin._HOOKS)
    seen = plugin._around_validation(lambda *args: args, "this", policy, "tree")
    assert seen == ("this", "fcfs", "tree")


def test_a_hook_that_could_not_be_applied_stops_the_start(sglang: Hooks) -> None:
    missing = f"{plugin._SCHEDULER}.abort_request"
    sglang.patched.update(plugin._HOOKS.keys() - {missing})
    with pytest.raises(UnsupportedError, match=r"could not hook sglang\.srt\..*abort_request$"):
        plugin._around_validation(lambda *args: args, "this", "topas", "tree")
    assert plugin._around_validation(lambda *args: args, "this", "lpm", "tree") == ("this", "lpm", "tree")


def test_an_unsupported_mode_stops_the_start() -> None:
    with pytest.raises(UnsupportedError, match="--tp-size"):
        plugin._after_init(None, scheduler(tp_size=4))
    assert plugin._active == []


# ------------------------------------------------------------------------------------------- HTTP process


def manager(policy: str = "topas") -> SimpleNamespace:
    """Return a tokenizer manager of a server under a policy."""
    return SimpleNamespace(server_args=SimpleNamespace(schedule_policy=policy))


def routing_key(headers: object, result: str | None = None, policy: str = "topas") -> str | None:
    """Return what the hook adds to a request with these headers."""
    this = SimpleNamespace(tokenizer_manager=manager(policy))
    return plugin._after_routing_key(result, this, SimpleNamespace(headers=headers))


def test_session_headers_travel_in_the_routing_key() -> None:
    key = routing_key({"X-Session-Id": "s1", "Accept": "*/*"})
    assert key is not None
    assert key.startswith(PACKED)
    facts, wrong = read_facts(None, key)
    assert (facts.task, wrong) == ("s1", None)


def test_a_routing_key_of_the_clients_own_and_other_servers_are_left_alone() -> None:
    headers = {"X-Session-Id": "s1"}
    assert routing_key(headers, result="mine") is None
    assert routing_key(headers, policy="lpm") is None
    assert routing_key({"Accept": "*/*"}) is None
    assert plugin._after_routing_key(None, SimpleNamespace(tokenizer_manager=manager()), None) is None


class Hostile:
    """Headers that fail when they are read."""

    def items(self) -> Iterator[tuple[str, str]]:
        """Fail."""
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "headers", [Hostile(), None, 5, {1: 2}, {"x-session-id": None}, {"x-session-id": b"s"}]
)
def test_headers_never_fail_a_request(headers: object) -> None:
    routing_key(headers)


def test_nested_facts_are_sent_as_text() -> None:
    deep = {"topas": {"task": "t", "dag": {"a": {"agent": "A"}}}, "other": 1}
    given = SimpleNamespace(sampling_params={"custom_params": deep, "temperature": 0})
    args, kwargs = plugin._before_tokenized(manager(), given, 1, key=2)
    assert args[1:] == (given, 1)
    assert kwargs == {"key": 2}
    sent = given.sampling_params["custom_params"]
    assert isinstance(sent["topas"], str)
    assert sent["other"] == 1
    assert read_facts(sent) == read_facts(deep)
    assert isinstance(deep["topas"], dict)  # the client's own object is not changed


@pytest.mark.parametrize(
    "given", [None, [], {}, {"temperature": 1}, {"custom_params": None}, {"custom_params": {"topas": {}}}]
)
def test_flat_parameters_are_sent_as_they_are(given: object) -> None:
    obj = SimpleNamespace(sampling_params=given)
    plugin._before_tokenized(manager(), obj)
    assert obj.sampling_params == given
    plugin._before_tokenized(manager(), SimpleNamespace())


def test_other_servers_parameters_are_left_alone() -> None:
    given = {"custom_params": {"a": {"b": {"c": 1}}}}
    obj = SimpleNamespace(sampling_params=given)
    plugin._before_tokenized(manager("fcfs"), obj)
    assert obj.sampling_params is given


# ------------------------------------------------------------------------------------------------- metrics


def test_without_exported_metrics_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "x")
    found = metrics_for(scheduler(), {})
    assert isinstance(found, NoMetrics)
    found.count("decisions")
    found.show("tasks", 1)
    found.time("event_seconds", 0.1)
    started = scheduler()
    started.server_args.enable_metrics = True
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    assert isinstance(metrics_for(started, {}), NoMetrics)


class Stub:
    """A metric of a stand-in for the Prometheus client, which keeps what it is told."""

    made: typing.ClassVar[dict[str, Stub]] = {}

    def __init__(self, name: str, _: str, names: tuple[str, ...] = (), **more: Any) -> None:  # noqa: ANN401
        self.names, self.more = names, more
        self.values: list[tuple[dict[str, str], float]] = []
        self.bound: dict[str, str] | None = None
        Stub.made[name] = self

    def labels(self, **labels: str) -> Stub:
        """Bind labels: all of them, as the client demands."""
        assert set(labels) == set(self.names)
        bound = object.__new__(Stub)
        bound.names, bound.values, bound.bound = self.names, self.values, labels
        return bound

    def inc(self, value: float = 1) -> None:
        """Keep a value."""
        assert self.bound is not None
        self.values.append((self.bound, value))

    set = observe = inc


def test_metrics_carry_the_models_name_and_their_own_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    client = types.ModuleType("prometheus_client")
    client.__dict__.update(Counter=Stub, Gauge=Stub, Histogram=Stub)
    monkeypatch.setitem(sys.modules, "prometheus_client", client)
    Stub.made.clear()
    made = metrics.PrometheusMetrics("model", {"policy": "topas"})
    made.count("decisions", 2)
    made.count("fallbacks", reason="event")
    made.show("tasks", 3)
    made.time("event_seconds", 0.5)
    base = {"model_name": "model"}
    names = {**metrics.COUNTERS, **metrics.GAUGES, **metrics.HISTOGRAMS}
    assert set(Stub.made) == {f"topas_{name}" for name in [*names, "info"]}
    assert Stub.made["topas_decisions"].values == [(base, 2)]
    assert Stub.made["topas_fallbacks"].values == [(base | {"reason": "event"}, 1)]
    assert Stub.made["topas_tasks"].values == [(base, 3)]
    assert Stub.made["topas_event_seconds"].values == [(base, 0.5)]
    assert Stub.made["topas_info"].values == [(base | {"policy": "topas"}, 1)]
