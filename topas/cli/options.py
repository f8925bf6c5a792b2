"""Options that several commands share: the engine, and the parameters of score, search and lookahead."""

from __future__ import annotations

import argparse

from topas.errors import InputError
from topas.event import Params
from topas.online.sglang.config import SearchParams, ServingConfig, load_config
from topas.policies import policy_names
from topas.profile import Profile, load_profile, profile_names


def add_policy_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy``."""
    parser.add_argument(
        "--policy",
        default="topas",
        help=f"one of {', '.join(policy_names(on_request=True))} (default: topas)",
    )


PROFILE = "study"
"""The engine profile of simulations where neither an option nor a configuration names one."""

LIMITS: dict[str, tuple[float, float]] = {
    "beta": (0.0, 100.0),
    "rho": (0.0, 100.0),
    "M": (0, 16),
    "K": (0, 1_000_000),
    "age_factor": (1e-3, 1e3),
}
"""What the parameters that have an option of their own may be."""


def add_config_option(parser: argparse.ArgumentParser, what: str = "params and profile") -> None:
    """Add ``--config``; ``what`` of the file is taken."""
    parser.add_argument(
        "--config",
        metavar="F",
        help=f"configuration file of a server (topas-serving/1, YAML or TOML), of which {what} are taken; "
        "other options count before it",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add configuration, profile and parameter options."""
    add_config_option(parser)
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--profile",
        metavar="X",
        help=f"engine profile: a JSON file or one of {', '.join(profile_names())} (default: {PROFILE})",
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
    search.add_argument(
        "--age-factor",
        type=float,
        metavar="X",
        help=f"age scale in mean services of a task, Eq. 12 [{defaults.age_factor}]",
    )


def config_of(args: argparse.Namespace) -> ServingConfig:
    """Return the configuration that ``--config`` names, the defaults without one.

    Raises
    ------
    InputError
        if the file is wrong.
    """
    return load_config(args.config)


def engine_of(args: argparse.Namespace, default: str = PROFILE) -> Profile:
    """Return the profile with the overrides given: the option's, else the configuration's, else the default.

    What is chosen is noted in ``args``, so that a report's command line has it.

    Raises
    ------
    InputError
        if the configuration or the profile is wrong.
    """
    changes: dict[str, object] = {}
    if args.admission:
        changes["admission"] = args.admission
    if args.redo:
        changes["redo"] = args.redo
    if args.host_cache:
        changes["host_cache"] = args.host_cache == "on"
    args.profile = args.profile or config_of(args).profile or default
    profile = load_profile(args.profile)
    return profile.model_copy(update=changes) if changes else profile


def search_params_of(args: argparse.Namespace) -> SearchParams:
    """Return the parameters given: the options', else the configuration's, else the defaults.

    Raises
    ------
    InputError
        if one is out of range, or the configuration is wrong.
    """
    given = {name: getattr(args, name) for name in LIMITS if getattr(args, name) is not None}
    for name, value in given.items():
        low, high = LIMITS[name]
        if not low <= value <= high:
            option = "--" + name.replace("_", "-")
            raise InputError(f"expected a number from {low:g} to {high:g}, found {value}", field=option)
    return config_of(args).params.model_copy(update=given)


def params_of(args: argparse.Namespace) -> Params:
    """Return the parameters of :func:`search_params_of` as the simulator takes them.

    Raises
    ------
    InputError
        as that function does.
    """
    return search_params_of(args).on(Params())
