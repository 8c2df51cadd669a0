"""`espalier agent ...`: data on stdout, progress on stderr, errors in one line."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from espalier_agent.commands.agent import agent
from espalier_agent.policies.policy import Policy, load_policy, save_policy
from espalier_core.types.outcomes import OutcomeTable


@pytest.fixture
def run() -> Callable[..., Result]:
    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(agent, [str(argument) for argument in arguments])

    return invoke


Run = Callable[..., Result]


def refusal(run: Run, *arguments: object) -> str:
    """Return the one line in which a command says what it cannot use."""
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def test_evaluate_prints_json_or_a_table_for_people(run: Run) -> None:
    result = run("evaluate", "--json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert [table["table"] for table in shown["tables"]] == [
        f"cnn{model}-{scenario}" for model in (1, 2) for scenario in ("early", "late", "middle")
    ]
    lines = run("evaluate").stdout.splitlines()
    assert len(lines) == 8
    assert lines[-1].startswith("mean regret ")


def test_learn_reads_folders_files_and_the_papers_tables_and_learns_the_same_twice(
    run: Run, tmp_path: Path, make_table: Callable[..., OutcomeTable]
) -> None:
    table = json.dumps(make_table(lambda actions: 0.1 * (1 + len(set(actions))), points=2, decisions=2).to_json())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.json").write_text(table)
    (tmp_path / "b.json").write_text(table.replace('"middle"', '"other"'))
    sources = ["--outcomes", tmp_path / "folder", "--outcomes", tmp_path / "b.json", "--outcomes", "lamelas"]
    options = ["--learner", "reinforce", "--recipe", "batched", "--episodes", "2000", "--seed", "3"]
    for name in ("one", "two"):
        result = run("learn", *sources, *options, "--name", "mine", "--output", tmp_path / name)
        assert result.exit_code == 0, result.stderr
    one, two = load_policy(tmp_path / "one"), load_policy(tmp_path / "two")
    assert one.version == two.version
    assert [table.name for table in one.lineage.tables][:2] == ["chain-middle", "chain-other"]
    assert len(one.lineage.tables) == 8
    assert (one.name, one.lineage.seed) == ("mine", 3)
    assert "2000/2000 episodes" in result.stderr
    assert len(result.stdout.splitlines()) == 10


def test_learn_as_the_paper_and_go_on_in_a_curriculum(run: Run, tmp_path: Path) -> None:
    reinforce = ["--learner", "reinforce", "--episodes", "12"]
    assert run("learn", *reinforce, "--output", tmp_path / "e").exit_code == 0
    more = ["--curriculum", "late-early-middle", "--temperature", "10", "--from", tmp_path / "e"]
    result = run("learn", *reinforce, *more, "--output", tmp_path / "l")
    assert result.exit_code == 0, result.stderr
    lineage = load_policy(tmp_path / "l").lineage
    assert lineage.parent == load_policy(tmp_path / "e").identity
    assert (lineage.config["order"], lineage.config["temperature"]) == ("curriculum", 10.0)
    assert lineage.config["learning_rate"] == 1e-4
    assert [table.name.partition("-")[2] for table in lineage.tables] == ["late"] * 2 + ["early"] * 2 + ["middle"] * 2


@pytest.mark.parametrize("encoder", ["lstm", "graph"])
@pytest.mark.parametrize(
    ("learner", "short"),
    [("expected", ["updates=2"]), ("reinforce", ["episodes=12"]), ("ppo", ["episodes=12"]), ("dqn", ["episodes=12"])],
)
def test_every_learner_learns_with_every_encoder_what_evaluate_reads(
    run: Run, tmp_path: Path, learner: str, short: list[str], encoder: str
) -> None:
    options = [part for field in short for part in ("--set", field)]
    result = run("learn", "--learner", learner, "--encoder", encoder, *options, "--output", tmp_path / "p")
    assert result.exit_code == 0, result.stderr
    policy = load_policy(tmp_path / "p")
    assert (policy.lineage.learner, policy.network.config.encoder) == (learner, encoder)
    judged = run("evaluate", "--policy", tmp_path / "p")
    assert judged.exit_code == 0
    assert judged.stdout == result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--episodes", "3"], "learner expected has no field 'episodes'; its fields: updates, returns"),
        (["--set", "updates=none"], "updates=none: Input should be a valid integer"),
        (["--recipe", "paper"], "learner expected has no recipe 'paper'; its recipes: fit, smooth"),
        (["--curriculum", "early-late"], "curriculum 'early-late' must name each scenario of the tables once"),
    ],
)
def test_what_a_learner_cannot_be_told_is_one_line(run: Run, tmp_path: Path, options: list[str], message: str) -> None:
    assert refusal(run, "learn", *options, "--output", tmp_path / "p").startswith(message)


@pytest.mark.parametrize(
    "command", [["evaluate"], ["learn", "--set", "updates=1", "--output", "p"]], ids=["evaluate", "learn"]
)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": None}, "table chain-middle: has no architecture, and 'chain' is not a model known by name"),
        ({"scenario": "\ud800"}, "scenario: Input should be a valid string"),
        (None, "not JSON text"),
    ],
)
def test_a_table_of_a_folder_that_cannot_be_played_is_named(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_table: Callable[..., OutcomeTable],
    command: list[str],
    change: dict[str, object] | None,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    sound = make_table(lambda _: 0.5).to_json()
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.json").write_text(json.dumps(sound))
    (tmp_path / "tables" / "b.json").write_text("{" if change is None else json.dumps({**sound, **change}))
    assert refusal(run, *command, "--outcomes", "tables").startswith(f"tables/b.json: {message}")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    "command",
    [["evaluate", "--policy"], ["learn", "--set", "updates=1", "--output", "p", "--from"]],
    ids=["evaluate", "learn"],
)
def test_a_policy_that_cannot_be_used_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_policy(policy, tmp_path / "q")
    document = json.loads((tmp_path / "q" / "policy.json").read_text())
    (tmp_path / "q" / "policy.json").write_text(json.dumps({**document, "version": 2}))
    assert refusal(run, *command, "q").startswith("q/policy.json: version 2 comes from a newer Espalier")
    assert not (tmp_path / "p").exists()


def test_a_table_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    said = refusal(run, "learn", "--outcomes", tmp_path / "none", "--output", tmp_path / "p")
    assert said.startswith(f"{tmp_path}/none: no such file or folder, and not an included set (")
    assert "lamelas" in said


def test_serving_on_a_port_in_use_is_one_line_and_a_hint(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("serve", "--port", port)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"error: cannot serve on 127.0.0.1:{port}: Address already in use",
        "hint: --port 0 takes a free port",
    ]


def test_serving_a_policy_that_cannot_be_read_is_one_line(run: Run, tmp_path: Path) -> None:
    said = refusal(run, "serve", "--port", "0", "--policy", tmp_path)
    assert said.startswith(f"{tmp_path}/policy.json: cannot be read")


@pytest.mark.parametrize("command", ["learn", "evaluate"])
@pytest.mark.parametrize("seed", [-1, 2**32, 2**64])
def test_a_seed_that_cannot_be_is_refused(run: Run, command: str, seed: int) -> None:
    result = run(command, "--seed", seed)
    assert result.exit_code == 2
    assert f"'--seed': {seed} is not in the range 0<=x<=4294967295" in result.stderr


def test_a_command_that_is_not_understood_is_2(run: Run) -> None:
    assert run("learn").exit_code == 2
    assert run("serve", "--port", "70000").exit_code == 2


def test_ctrl_c_ends_a_command_with_130_not_with_the_code_of_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("espalier_agent.commands.evaluate.evaluate_policy", interrupted)
    result = run("evaluate")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("inside", [False, True])
def test_learn_says_that_it_cannot_write_before_it_learns(run: Run, tmp_path: Path, inside: bool) -> None:
    """Else it would have said how many episodes it had learnt from."""
    (tmp_path / "file").write_text("kept")
    output = tmp_path / "file" / "policy" if inside else tmp_path / "file"
    reason = "Not a directory" if inside else "File exists"
    said = refusal(run, "learn", "--set", "updates=1", "--output", output)
    assert said == f"--output: {output}: cannot be written: {reason}"


def test_learn_leaves_no_folder_where_it_did_not_begin(run: Run, tmp_path: Path) -> None:
    assert run("learn", "--set", "updates=0", "--output", tmp_path / "policy").exit_code == 2
    assert not (tmp_path / "policy").exists()
