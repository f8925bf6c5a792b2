"""Engine profiles: the constants of one model on one GPU (see docs/model.md)."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from topas.cost import Cost
from topas.errors import InputError
from topas.schema import Strict, parse_json, validate

_DETAILS = frozenset(
    {
        "prefill_s_per_seq",
        "prefill_s_per_cached_token",
        "prefill_s_per_pair",
        "prefill_s_per_cached_pair",
        "request_s",
        "prefix_sharing",
        "ignore_eos",
    }
)
"""Fields that only measured profiles have."""


class Profile(Strict):
    """Engine constants; units are in the names.

    A prefill batch of n requests that computes x tokens behind y cached ones takes ``prefill_base_s + n
    * prefill_s_per_seq + x * prefill_s_per_token + y * prefill_s_per_cached_token`` and, for attention,
    ``prefill_s_per_pair`` times the sum over its requests of (x + y)^2 - y^2, and
    ``prefill_s_per_cached_pair`` times that of y^2 (a backend that also attends from cached tokens). A
    decode step of n requests over k KV tokens takes ``decode_base_s + n * decode_s_per_seq + k *
    decode_s_per_kv_token``.

    ``request_s`` passes outside the engine for each request: network, tokenizer, detokenizer. With
    ``prefix_sharing`` "tree" a shared prefix is one copy in a radix tree, and no more than that: attention
    reads it for each request anew, requests of one prefill batch that miss it compute it each (E24).
    ``ignore_eos`` says that requests which use up their allowance are sent with that flag: SGLang then
    reserves all of it (E25).
    """

    format: Literal["topas-profile/1"] = "topas-profile/1"
    name: str = "custom"
    note: str = ""
    kv_budget_tokens: int = Field(gt=0)
    kv_bytes_per_token: int = Field(gt=0)
    swap_bytes_per_s: float = Field(gt=0)
    prefill_base_s: float = Field(ge=0)
    prefill_s_per_token: float = Field(ge=0)
    decode_base_s: float = Field(ge=0)
    decode_s_per_seq: float = Field(ge=0)
    decode_s_per_kv_token: float = Field(default=0.0, ge=0)
    prefill_s_per_seq: float = Field(default=0.0, ge=0)
    prefill_s_per_cached_token: float = Field(default=0.0, ge=0)
    prefill_s_per_pair: float = Field(default=0.0, ge=0)
    prefill_s_per_cached_pair: float = Field(default=0.0, ge=0)
    request_s: float = Field(default=0.0, ge=0)
    max_running: int = Field(default=256, gt=0)
    host_cache: bool = True
    admission: Literal["full", "sglang"] = "full"
    redo: Literal["decode", "prefill", "keep"] = "decode"
    prefix_sharing: Literal["batch", "tree"] = "batch"
    ignore_eos: bool = False

    @model_serializer(mode="wrap")
    def _without_unused(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the details of engines as they are where a profile makes no use of them."""
        values: dict[str, Any] = dump(self)
        fields = type(self).model_fields
        return {k: v for k, v in values.items() if k not in _DETAILS or v != fields[k].default}

    @property
    def cost(self) -> Cost:
        """Return what the engine's work takes."""
        return Cost(*(float(getattr(self, name)) for name in Cost._fields))

    @property
    def swap_s_per_token(self) -> float:
        """Return the time to move one prefix token over the host link (mu / B_swap of Eq. 8)."""
        return self.kv_bytes_per_token / self.swap_bytes_per_s

    @property
    def decode_s_per_token(self) -> float:
        """Return T_decode of Eq. 9: one decode step of a request that runs alone."""
        return self.decode_base_s + self.decode_s_per_seq

    def expected_service_s(self, input_tokens: int, new_tokens: int) -> float:
        """Return the profiled service of one request before any was seen (paper section IV-B)."""
        return self.cost.service_s(input_tokens, new_tokens)


def profile_names() -> list[str]:
    """Return the names of the built-in profiles."""
    folder = resources.files("topas") / "profiles"
    return sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))


def load_profile(name_or_path: str) -> Profile:
    """Return a built-in profile by name, or read one from a JSON file.

    Raises
    ------
    InputError
        if there is neither such a built-in profile nor such a file, or the file is wrong.
    """
    if name_or_path in profile_names():
        text = (resources.files("topas") / "profiles" / f"{name_or_path}.json").read_text()
        return validate(Profile, json.loads(text), source=name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(profile_names())
        raise InputError(f"no such profile or file; built-in profiles: {known}", source=name_or_path)
    return validate(Profile, parse_json(path.read_bytes(), source=str(path)), source=str(path))
