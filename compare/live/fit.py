r"""From measurements of a live server to the constants of an engine profile.

Both models of :class:`topas.profile.Profile` are linear in constants that cannot be negative. They are fitted
by non-negative least squares (Lawson and Hanson; :func:`scipy.optimize.nnls`) of relative errors: rows are
divided by the measured time, so that a short step counts as much as a long prefill. Repeats of one experiment
are replaced by their median before.

Attention is charged for each request or once for a shared prefix, whichever explains the decode steps better.
Without a host tier an absent prefix is computed again. Moving it then costs what a prefill that computes it
takes longer than one that finds it, and ``swap_bytes_per_s`` is chosen such that ``swap_s_per_token`` says
so, for a prefix of a quarter of the KV memory. So the score of TOPAS weighs a cold prefix.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families
from scipy.optimize import nnls
from tqdm import tqdm

from compare.live.api import RequestError
from compare.live.client import ApiName, connect
from compare.live.points import (
    DecodePoint,
    Experiments,
    HostPoint,
    MeasuredPoints,
    PrefillPoint,
    ServerLimits,
)
from compare.live.probe import ServerProbe
from compare.live.prompts import Vocab
from topas.errors import InputError
from topas.profile import Profile

GIB = 1 << 30
LEAST_S = 1e-12
"""Stands for a time that was measured as zero, where a quotient is asked for."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself; None where it does not."""

    kv_budget_tokens: int | None = None
    max_running: int | None = None
    host_cache: bool = False
    kv_bytes_per_token: int | None = None
    longest: int | None = None
    sglang: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted linear model: constants by name, and how well it explains the points.

    ``r2`` is the share of the variance explained, ``median_error`` and ``worst_error`` are relative.
    """

    constants: Mapping[str, float]
    points: int
    r2: float
    median_error: float
    worst_error: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile, the models behind it, and the points that they were fitted to."""

    profile: Profile
    prefill: Line
    decode: Line
    points: MeasuredPoints


def fit_line(columns: Mapping[str, Sequence[float]], seconds: Sequence[float]) -> Line:
    """Fit ``seconds`` by a non-negative combination of the columns, in relative least squares.

    Raises
    ------
    InputError
        if there are fewer points than constants.
    """
    y = np.maximum(np.asarray(seconds, dtype=float), LEAST_S)
    matrix = np.column_stack([np.asarray(column, dtype=float) for column in columns.values()])
    if len(y) < len(columns):
        raise InputError(f"expected at least {len(columns)} usable measurements, got {len(y)}")
    scale = np.where(matrix.any(axis=0), np.abs(matrix).max(axis=0), 1.0)
    found, _ = nnls(matrix / scale / y[:, None], np.ones(len(y)))
    constants = found / scale
    predicted: Numbers = matrix @ constants
    spread = float(((y - y.mean()) ** 2).sum())
    errors = np.abs(predicted / y - 1)
    return Line(
        constants=dict(zip(columns, map(float, constants), strict=True)),
        points=len(y),
        r2=1 - float(((y - predicted) ** 2).sum()) / spread if spread else 1.0,
        median_error=float(np.median(errors)),
        worst_error=float(errors.max()),
    )


def fit_prefill(points: Sequence[PrefillPoint]) -> Line:
    """Fit the time of prefill batches."""
    groups: dict[tuple[tuple[int, int], ...], list[float]] = {}
    for point in points:
        groups.setdefault(point.requests, []).append(point.seconds)
    columns = {
        "prefill_base_s": [1.0 for _ in groups],
        "prefill_s_per_seq": [float(len(batch)) for batch in groups],
        "prefill_s_per_token": [float(sum(x for x, _ in batch)) for batch in groups],
        "prefill_s_per_cached_token": [float(sum(y for _, y in batch)) for batch in groups],
        "prefill_s_per_pair": [float(sum((x + y) ** 2 - y**2 for x, y in batch)) for batch in groups],
        "prefill_s_per_cached_pair": [float(sum(y**2 for _, y in batch)) for batch in groups],
    }
    if len({len(batch) for batch in groups}) == 1:  # then a batch and a request cannot be told apart
        del columns["prefill_s_per_seq"]
    return fit_line(columns, [median(times) for times in groups.values()])


def fit_decode(points: Sequence[DecodePoint], sharing: Literal["batch", "tree"]) -> Line:
    """Fit the time of decode steps; with "batch" a shared prefix is read once, not for each request."""
    groups: dict[tuple[int, int, int], list[float]] = {}
    for p in points:
        groups.setdefault((p.requests, p.kv_tokens, p.shared_tokens), []).append(p.seconds)
    once = sharing == "batch"
    columns = {
        "decode_base_s": [1.0 for _ in groups],
        "decode_s_per_seq": [float(n) for n, _, _ in groups],
        "decode_s_per_kv_token": [float(k - s if once else k) for _, k, s in groups],
    }
    return fit_line(columns, [median(times) for times in groups.values()])


def swap_s_per_token(host: Sequence[HostPoint], prefill: Mapping[str, float], prefix_tokens: int) -> float:
    """Return what a token of an absent prefix costs: its way over the link, else its computation."""
    if host:
        return max(median(point.seconds / point.tokens for point in host), 0.0)
    each = prefill["prefill_s_per_token"] - prefill["prefill_s_per_cached_token"]
    pair = prefill["prefill_s_per_pair"] - prefill["prefill_s_per_cached_pair"]
    return max(each + prefix_tokens * pair, 0.0)


def fit_points(points: MeasuredPoints, facts: ServerFacts, *, name: str, note: str) -> Fit:
    """Return the profile that explains the points.

    Raises
    ------
    InputError
        if too little could be measured, or something is known neither from the server nor from an option.
    """
    kv_tokens, running, kv_bytes = facts.kv_budget_tokens, facts.max_running, facts.kv_bytes_per_token
    for field, value in (("kv-tokens", kv_tokens), ("max-running", running), ("kv-bytes", kv_bytes)):
        if value is None:
            raise InputError("the server does not tell it: give the option", field=f"--{field}")
    prefill = fit_prefill(points.prefill)
    lines: dict[Literal["batch", "tree"], Line] = {
        sharing: fit_decode(points.decode, sharing) for sharing in ("batch", "tree")
    }
    sharing: Literal["batch", "tree"] = (
        "tree" if lines["tree"].median_error <= lines["batch"].median_error else "batch"
    )
    times: dict[str, Any] = {
        name: _short(value) for line in (prefill, lines[sharing]) for name, value in line.constants.items()
    }
    swap_s = swap_s_per_token(points.host, prefill.constants, (kv_tokens or 0) // 4)
    profile = Profile(
        name=name,
        note=note,
        kv_budget_tokens=kv_tokens or 0,
        kv_bytes_per_token=kv_bytes or 0,
        swap_bytes_per_s=_short((kv_bytes or 0) / max(swap_s, LEAST_S)),
        **times,
        request_s=_short(median(points.outside_s)) if points.outside_s else 0.0,
        max_running=running or 0,
        host_cache=facts.host_cache,
        admission="sglang",
        redo="keep",
        prefix_sharing=sharing,
        ignore_eos=facts.sglang,
    )
    return Fit(profile, prefill, lines[sharing], points)


def _short(value: float) -> float:
    """Round to four significant digits: more were not measured."""
    return float(f"{value:.4g}")


def fit(  # noqa: PLR0913  what a measurement depends on
    url: str,
    *,
    name: str,
    given: ServerFacts | None = None,
    repeats: int = 5,
    seed: int = 0,
    api: ApiName = "auto",
    vocab: Vocab | None = None,
    timeout_s: float = 600.0,
    progress: bool | None = False,
    clock: Callable[[], float] = time.monotonic,
) -> Fit:
    """Measure the server at ``url``, which nothing else may use meanwhile, and fit a profile to it.

    Parameters
    ----------
    name : of the profile.
    given : what to believe instead of what the server says of itself, where it is not None.
    repeats : times that every experiment is done.
    seed : of prompts and of the order of experiments.
    progress : show a bar on standard error; None: only on a terminal.

    Raises
    ------
    InputError
        if the server cannot be reached, refuses a request, or does not tell what no option gives.
    """
    if repeats < 1:
        raise InputError(f"expected at least 1 repeat, found {repeats}", field="--repeats")
    vocab = vocab or Vocab()

    async def go() -> Fit:
        async with connect(url, api=api, stop_token=vocab.low, timeout_s=timeout_s, clock=clock) as client:
            probe = ServerProbe(client)
            facts = _merged(await facts_of(probe), given or ServerFacts())
            if facts.kv_budget_tokens is None or facts.max_running is None:
                missing = "--kv-tokens" if facts.kv_budget_tokens is None else "--max-running"
                raise InputError("the server does not tell it: give the option", field=missing)
            limits = ServerLimits(
                facts.kv_budget_tokens, facts.max_running, facts.host_cache, facts.longest or 1 << 30
            )
            experiments = Experiments(probe, limits, seed=seed, vocab=vocab)
            try:
                await probe.ask(experiments.prompt(64), 32, 16)  # what is compiled or loaded at first use
                disable = None if progress is None else not progress
                for step in tqdm(experiments.steps(repeats), unit="experiment", disable=disable):
                    await step()
                await probe.flush()
            except RequestError as error:
                raise InputError(f"a measurement failed: {error}", source=url) from None
            note = f"Measured by `topas profile fit`, {repeats} repeats."
            return fit_points(experiments.points(), facts, name=name, note=note)

    return asyncio.run(go())


def _merged(found: ServerFacts, given: ServerFacts) -> ServerFacts:
    changes = {field: value for field, value in _values(given) if value is not None and value is not False}
    return replace(found, **changes)


def _values(facts: ServerFacts) -> Iterable[tuple[str, Any]]:
    return ((name, getattr(facts, name)) for name in facts.__slots__)


async def facts_of(probe: ServerProbe) -> ServerFacts:
    """Ask an SGLang server for its limits; another server tells none."""
    text = await probe.text("/server_info") or await probe.text("/get_server_info")
    try:
        info = json.loads(text or "{}")
    except ValueError:
        info = {}
    if not isinstance(info, dict) or "schedule_policy" not in info:
        return ServerFacts()
    tokens, page = info.get("max_total_num_tokens"), info.get("page_size") or 1
    states = info.get("internal_states") or [{}]
    running = states[0].get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
    return ServerFacts(
        kv_budget_tokens=tokens,
        max_running=running,
        host_cache=bool(info.get("enable_hierarchical_cache")),
        kv_bytes_per_token=_kv_bytes(await probe.text("/metrics/"), tokens, page)
        or _kv_bytes_of_model(info.get("model_path"), info.get("dtype"), info.get("tp_size") or 1),
        longest=info.get("max_req_input_len"),
        sglang=True,
    )


def _kv_bytes(metrics: str | None, tokens: int | None, page_tokens: int) -> int | None:
    """Return KV bytes a token from the size of the pool, which has a spare page."""
    if not metrics or not tokens:
        return None
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "sglang:kv_cache_memory_usage_gb" and sample.value > 0:
                return round(sample.value * GIB / (tokens + page_tokens))
    return None


DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4, "auto": 2}


def _kv_bytes_of_model(path: str | None, dtype: str | None, shards: int) -> int | None:
    """Return KV bytes a token from a model's own file, where it lies on this machine."""
    try:
        config = json.loads((Path(path or "") / "config.json").read_bytes())
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        kept = max(config.get("num_key_value_heads", heads) // shards, 1)
        size_bytes = size * DTYPE_BYTES.get(dtype or "auto", 2)
        return int(2 * config["num_hidden_layers"] * kept * size_bytes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
