"""``topas decide``: what a policy does at one event."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from topas.cli.options import add_config_option, add_policy_option, config_of
from topas.feasible import violations
from topas.formats import decision_json, read_event
from topas.policies import get_policy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = "Print what a policy decides on one scheduling event (topas-event/1)."
    parser.epilog = "example: topas decide event.json --policy topas --json"
    parser.add_argument("event", metavar="EVENT", help="event file")
    add_policy_option(parser)
    add_config_option(parser, "params, in place of the event's,")
    parser.add_argument("--json", action="store_true", help="print one decision object and nothing else")


def run(args: argparse.Namespace) -> int:
    """Run it."""
    policy = get_policy(args.policy)
    event = read_event(args.event)
    if args.config is not None:  # without it the event's own parameters hold
        event = replace(event, params=config_of(args).params.on(event.params))
    decision = policy.decide(event)
    value = decision_json(decision)
    if args.json:
        print(json.dumps(value))
        return 0
    print(f"resident  {', '.join(decision.resident) or '-'}")
    print(f"admit     {', '.join(decision.admit) or '-'}")
    print(f"preempt   {', '.join(decision.preempt) or '-'}")
    terms = value["terms"]
    print(
        f"score     {value['score_s']:.6f} s = admit {terms['admit_s']:.6f} - move {terms['move_s']:.6f}"
        f" - redo {terms['redo_s']:.6f} - revoke {terms['revoke_s']:.6f} + reuse {terms['reuse_s']:.6f}"
    )
    for problem in violations(event, decision):
        print(f"not feasible: {problem}")
    return 0
