"""A parameter is declared once: files, command line, tuning and documents say the same of it."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from topas.cli.options import add_engine_options
from topas.errors import InputError
from topas.event import Params
from topas.online.sglang.config import ServingConfig
from topas.params import PARAMETERS, Lookahead, SearchParams, params_in_words, values_of, with_values
from topas.schema import validate

DOCS = Path(__file__).parent.parent / "docs"


def nested(name: str, value: float) -> dict[str, object]:
    section, _, last = name.rpartition(".")
    return {section: {last: value}} if section else {last: value}


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_has_words_and_a_range_to_tune_in_that_is_allowed(name: str) -> None:
    parameter = PARAMETERS[name]
    assert parameter.words
    tuned = parameter.tuned
    for value in tuned.choices or (tuned.low, tuned.high):
        given = int(value) if parameter.kind is int else value
        assert values_of(validate(SearchParams, nested(name, given)))[name] == given


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("wrong", [-1, 1e10, True, "1", float("nan")])
def test_event_configuration_and_command_line_refuse_the_same(name: str, wrong: object) -> None:
    value = nested(name, wrong)  # type: ignore[arg-type]
    lines = []
    for model in (SearchParams, Params, ServingConfig):
        with pytest.raises(InputError) as error:
            validate(model, {"params": value} if model is ServingConfig else value)
        assert error.value.field is not None
        assert error.value.field.endswith(name)
        lines.append(error.value.expected)
    assert len(set(lines)) == 1


def test_every_parameter_outside_of_the_lookahead_is_an_option_with_its_words_and_default() -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    actions = {action.dest: action for action in parser._actions}
    for name, (_, kind, default, words, _) in PARAMETERS.items():
        if "." not in name:
            assert actions[name].type is kind
            assert actions[name].help == f"{words} [{default}]"


def test_documents_name_every_parameter_with_its_default_and_range() -> None:
    rows = [line.split("|") for line in (DOCS / "serving.md").read_text().splitlines() if line[:1] == "|"]
    ahead = TypeAdapter(Lookahead).json_schema()["properties"]
    limits = TypeAdapter(SearchParams).json_schema()["properties"]
    limits |= {f"lookahead.{name}": value for name, value in ahead.items()}
    for name, parameter in PARAMETERS.items():
        ((default, allowed),) = [row[2:4] for row in rows if f"`{name}`" in row[1]]
        assert f"{parameter.default:g}" in default
        limit = limits[name]
        below = "exclusiveMaximum" in limit
        high = limit["exclusiveMaximum" if below else "maximum"]
        assert allowed.strip() == f"{limit['minimum']:g} to {'below ' * below}{high:,.0f}"


def test_what_is_chosen_is_put_on_the_rest_and_taken_from_it() -> None:
    chosen = SearchParams(beta=2.0, age_factor=3.0, lookahead=Lookahead(margin=0.5))
    params = chosen.on(Params(age_scale_s=10.0, seed=7))
    assert (params.beta, params.lookahead.margin, params.seed) == (2.0, 0.5, 7)
    assert params.age_scale_s == 30.0
    assert SearchParams.of(params) == chosen
    assert validate(Params, asdict(params)) == params


def test_values_change_by_name_and_are_said_in_words() -> None:
    params = with_values(SearchParams(), {"K": 3, "lookahead.tail": 2.5})
    assert params == replace(SearchParams(), K=3, lookahead=Lookahead(tail=2.5))
    assert params_in_words(params) == "beta 1.0, rho 0.5, M 6, K 3, age factor 1.0, lookahead: tail 2.5"
    assert params_in_words(SearchParams()) == "beta 1.0, rho 0.5, M 6, K 0, age factor 1.0"
