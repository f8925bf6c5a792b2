"""Options that several commands share: the engine, and the parameters of score and search."""

from __future__ import annotations

import argparse
from dataclasses import replace

from topas.errors import InputError
from topas.event import Params
from topas.policies import policy_names
from topas.profile import Profile, load_profile, profile_names


def add_policy_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy``."""
    parser.add_argument(
        "--policy",
        default="topas",
        help=f"one of {', '.join(policy_names(on_request=True))} (default: topas)",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add profile and parameter options."""
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--profile",
        default="study",
        metavar="X",
        help=f"engine profile: a JSON file or one of {', '.join(profile_names())} (default: study)",
    )
    engine.add_argument(
        "--admission", choices=["full", "sglang"], help="override the profile's admission rule"
    )
    engine.add_argument(
        "--redo", choices=["decode", "prefill", "keep"], help="override how a preempted request resumes"
    )
    engine.add_argument(
        "--host-cache", choices=["on", "off"], help="override whether evicted KV keeps a host copy"
    )
    search = parser.add_argument_group("score and search (defaults in brackets)")
    defaults = Params()
    search.add_argument("--beta", type=float, help=f"weight of prefix reuse, Eq. 11 [{defaults.beta}]")
    search.add_argument("--rho", type=float, help=f"strength of aging, Eq. 12 [{defaults.rho}]")
    search.add_argument(
        "--M", type=int, help=f"largest agent pool that is enumerated, at most 16 [{defaults.M}]"
    )
    search.add_argument(
        "--K", type=int, help=f"cap on admissions and on preemptions a decision, 0 for none [{defaults.K}]"
    )


def engine_of(args: argparse.Namespace) -> Profile:
    """Return the profile with the overrides given."""
    changes: dict[str, object] = {}
    if args.admission:
        changes["admission"] = args.admission
    if args.redo:
        changes["redo"] = args.redo
    if args.host_cache:
        changes["host_cache"] = args.host_cache == "on"
    profile = load_profile(args.profile)
    return profile.model_copy(update=changes) if changes else profile


def params_of(args: argparse.Namespace) -> Params:
    """Return the parameters given.

    Raises
    ------
    InputError
        if one is out of range.
    """
    limits = {"beta": (0.0, 100.0), "rho": (0.0, 100.0), "M": (0, 16), "K": (0, 1_000_000)}
    given = {name: getattr(args, name) for name in limits if getattr(args, name) is not None}
    for name, value in given.items():
        low, high = limits[name]
        if not low <= value <= high:
            raise InputError(f"expected a number from {low:g} to {high:g}, found {value}", field=f"--{name}")
    return replace(Params(), **given)
