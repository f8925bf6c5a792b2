"""The operator's file: what it may say, and one line with file and field where it is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from topas.errors import InputError
from topas.event import Params
from topas.online.sglang.config import ServingConfig, load_config
from topas.params import SearchParams
from topas.sections import MAX_SECTION_BYTES
from topas.workflow import StageProfile, dag_of

YAML = """
format: topas-serving/1
profile: my-gpu.json
params: {beta: 0, rho: 0.25, M: 4, K: 8}
agents:
  planner: {prefix_tokens: 900}
  writer: {}
workflows:
  report:
    stages:
      write: {agent: writer, after: [plan], rounds: 3, input_tokens: 400, max_new_tokens: 500}
      plan: {agent: planner}
task_ttl_s: 60
max_tasks: 5
max_agents: 7
decision_log: {path: decisions.jsonl, max_mb: 1}
check: true
"""
TOML = """
format = "topas-serving/1"
profile = "my-gpu.json"
task_ttl_s = 60
max_tasks = 5
max_agents = 7
check = true
params = {beta = 0, rho = 0.25, M = 4, K = 8}
agents = {planner = {prefix_tokens = 900}, writer = {}}
decision_log = {path = "decisions.jsonl", max_mb = 1}
[workflows.report.stages]
write = {agent = "writer", after = ["plan"], rounds = 3, input_tokens = 400, max_new_tokens = 500}
plan = {agent = "planner"}
"""


def written(folder: Path, text: str | bytes, name: str = "topas.yaml") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refusal(path: str) -> str:
    """Return the line with which a file is refused, without its folder."""
    with pytest.raises(InputError) as error:
        load_config(path)
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith(path)
    return line.removeprefix(str(Path(path).parent)).removeprefix("/")


def test_without_a_file_the_defaults_hold() -> None:
    config = load_config(None)
    assert config == ServingConfig()
    assert (config.task_ttl_s, config.max_tasks, config.max_agents, config.check) == (
        600.0,
        10_000,
        256,
        False,
    )
    assert config.decision_log is None
    assert config.profile is None
    assert config.workflow("report") is None
    assert config.workflow(None) is None


def test_the_default_parameters_are_those_of_the_search() -> None:
    params, search = Params(), SearchParams()
    assert (search.beta, search.rho, search.M, search.K) == (params.beta, params.rho, params.M, params.K)


@pytest.mark.parametrize(("text", "name"), [(YAML, "a.yaml"), (YAML, "a.YML"), (TOML, "a.toml")])
def test_yaml_and_toml_say_the_same(tmp_path: Path, text: str, name: str) -> None:
    config = load_config(written(tmp_path, text, name))
    assert config.params == SearchParams(beta=0, rho=0.25, M=4, K=8)
    assert config.agents["planner"].prefix_tokens == 900
    assert config.agents["writer"].prefix_tokens is None
    assert (config.task_ttl_s, config.max_tasks, config.max_agents, config.check) == (60.0, 5, 7, True)
    log = config.decision_log
    assert log is not None
    assert (log.path, log.max_mb, log.files) == ("decisions.jsonl", 1, 2)
    workflow = config.workflow("report")
    assert workflow is not None
    assert workflow is config.workflow("report")
    assert workflow.name == "report"
    assert workflow.dag is dag_of({"plan": (), "write": ("plan",)})
    assert workflow.agents == ("planner", "writer")
    assert workflow.profiles == (None, StageProfile(3, 400, 500))


def test_the_path_of_a_profile_counts_from_the_file_and_a_name_stays(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, YAML)).profile == str(tmp_path / "my-gpu.json")
    named = load_config(written(tmp_path, "format: topas-serving/1\nprofile: study\n"))
    assert named.profile == "study"
    absolute = load_config(written(tmp_path, "format: topas-serving/1\nprofile: /etc/gpu.json\n"))
    assert absolute.profile == "/etc/gpu.json"


RIGHT: dict[str, Any] = {"format": "topas-serving/1"}
STAGES = {"a": {"agent": "A"}, "b": {"agent": "B", "after": ["a"]}}


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ({"format": "topas-serving/2"}, "format: input should be 'topas-serving/1', found 'topas-serving/2'"),
        ({"parms": {}}, "parms: extra inputs are not permitted"),
        ({"params": {"beta": -1}}, "params.beta: input should be greater than or equal to 0, found -1"),
        ({"params": {"rho": "0.5"}}, "params.rho: input should be a valid number, found '0.5'"),
        ({"params": {"M": 1.5}}, "params.M: input should be a valid integer, found 1.5"),
        ({"params": {"M": 17}}, "params.M: input should be less than or equal to 16, found 17"),
        ({"params": {"age_scale_s": 3}}, "params.age_scale_s: extra inputs are not permitted"),
        (
            {"agents": {"A": {"prefix_tokens": 1e3}}},
            ("agents.A.prefix_tokens: input should be a valid integer, found 1000.0"),
        ),
        (
            {"agents": {"A": None}},
            ("agents.A: input should be a valid dictionary or instance of AgentConfig, found None"),
        ),
        ({"agents": {"": {}}}, "agents.: string should have at least 1 character, found ''"),
        ({"agents": {"a\tb": {}}}, "agents.a b: expected printable characters, found 'a\\tb'"),
        (
            {"workflows": {"w": {"stages": {}}}},
            ("workflows.w.stages: dictionary should have at least 1 item after validation, not 0, found {}"),
        ),
        (
            {"workflows": {"w": {"stages": {"a": {}}}}},
            "workflows.w.stages.a.agent: expected a string, found None",
        ),
        (
            {"workflows": {"w": {"stages": STAGES | {"c": {"agent": "C", "after": ["d"]}}}}},
            "workflows.w.stages.c.after: unknown stage 'd'",
        ),
        (
            {"workflows": {"w": {"stages": STAGES | {"a": {"agent": "A", "after": ["b"]}}}}},
            "workflows.w.stages: stages form a cycle: 'a' -> 'b' -> 'a'",
        ),
        (
            {"workflows": {"w": {"stages": STAGES | {"c": {"agent": "C", "after": ["a", "a"]}}}}},
            "workflows.w.stages.c.after: a predecessor is named twice",
        ),
        (
            {"workflows": {"w": {"stages": {"a": {"agent": "A", "rounds": 3}}}}},
            "workflows.w.stages.a.input_tokens: expected with rounds",
        ),
        ({"task_ttl_s": 0}, "task_ttl_s: input should be greater than 0, found 0"),
        ({"max_tasks": 0}, "max_tasks: input should be greater than or equal to 1, found 0"),
        ({"max_agents": True}, "max_agents: input should be a valid integer, found True"),
        ({"decision_log": {}}, "decision_log.path: field required"),
        (
            {"decision_log": {"path": "x", "files": 1}},
            ("decision_log.files: input should be greater than or equal to 2, found 1"),
        ),
        ({"check": "yes"}, "check: input should be a valid boolean, found 'yes'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, part: dict[str, Any], line: str) -> None:
    path = written(tmp_path, json.dumps(RIGHT | part))  # JSON is YAML
    assert refusal(path) == f"topas.yaml: {line}"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "a.yaml",
            "format: topas-serving/1\nx: [1,\ny: 2\n",
            ("a.yaml:4: expected YAML: expected ',' or ']', but got '<stream end>'"),
        ),
        (
            "a.yaml",
            "format: topas-serving/1\nagents:\n  A: {}\n  A: {}\n",
            ("a.yaml:4: expected YAML: the key 'A' stands twice"),
        ),
        ("a.yaml", "? [1]\n: 2\n", "a.yaml:1: expected YAML: found unhashable key"),
        (
            "a.yaml",
            "x: !!python/object/apply:os.getcwd []\n",
            (
                "a.yaml:1: expected YAML: could not determine a "
                "constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.getcwd'"
            ),
        ),
        ("a.yaml", "x: 2001-99-99", "a.yaml: expected YAML: month must be in 1..12"),
        ("a.yaml", "x: " + "[" * 50_000, "a.yaml: expected values nested less deeply"),
        ("a.yaml", b"x: \xff", "a.yaml: expected UTF-8 text"),
        ("a.yaml", "", "a.yaml: expected sections by name"),
        ("a.yaml", "- 1", "a.yaml: expected sections by name"),
        ("a.yaml", "{}", "a.yaml: format: expected topas-serving/1"),
        (
            "a.yaml",
            "format: topas-serving/1\nagents: &a {A: *a}\n",
            ("a.yaml: agents.A.A: extra inputs are not permitted"),
        ),
        ("a.yaml", " " * (MAX_SECTION_BYTES + 1), "a.yaml: expected at most 1048576 bytes, found 1048577"),
        ("a.toml", "x = = 1", "a.toml:1: expected TOML: Invalid value"),
        ("a.toml", "\n\nx = 1\nx = 2\n", "a.toml:4: expected TOML: Cannot overwrite a value"),
        ("a.json", "{}", "a.json: expected a file that ends in .yaml, .yml or .toml"),
    ],
    ids=range(15),
)
def test_a_file_that_cannot_be_parsed_is_refused(
    tmp_path: Path, name: str, text: str | bytes, line: str
) -> None:
    assert refusal(written(tmp_path, text, name)) == line


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "none.toml")) == "none.toml: cannot read: No such file or directory"


def test_yaml_without_its_package_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert refusal(written(tmp_path, YAML)) == (
        "topas.yaml: reading YAML needs the package PyYAML; a TOML file needs none"
    )
    assert load_config(written(tmp_path, TOML, "a.toml")).max_tasks == 5


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(ValidationError):
        ServingConfig().check = True  # type: ignore[misc]
