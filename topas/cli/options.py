"""Options that several commands share: the engine, and the parameters of score, search and lookahead."""

from __future__ import annotations

import argparse

from topas.errors import InputError
from topas.online.sglang.config import ServingConfig, load_config
from topas.params import PARAMETERS, Params, SearchParams, with_values
from topas.policies import policy_names
from topas.profile import Profile, load_profile, profile_names
from topas.schema import validate

CHOSEN = [name for name in PARAMETERS if "." not in name]
"""The parameters that have an option of their own."""


def option(name: str) -> str:
    """Return the option of an argument: ``--max-events``."""
    return "--" + name.replace("_", "-")


def add_policy_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy``."""
    parser.add_argument(
        "--policy",
        default="topas",
        help=f"one of {', '.join(policy_names(on_request=True))} (default: topas)",
    )


PROFILE = "study"
"""The engine profile of simulations where neither an option nor a configuration names one."""


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
    for name in CHOSEN:
        _, kind, default, words, _ = PARAMETERS[name]
        search.add_argument(option(name), type=kind, metavar="X", help=f"{words} [{default}]")


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
    given = {name: getattr(args, name) for name in CHOSEN if getattr(args, name) is not None}
    try:
        validate(SearchParams, given)
    except InputError as error:
        raise InputError(error.expected, field=option(error.field or "")) from None
    return with_values(config_of(args).params, given)


def params_of(args: argparse.Namespace) -> Params:
    """Return the parameters of :func:`search_params_of` as the simulator takes them.

    Raises
    ------
    InputError
        as that function does.
    """
    return search_params_of(args).on(Params())
