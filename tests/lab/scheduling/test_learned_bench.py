"""The benchmark of learned allocation and `espalier policies` run to their ends, on traces of few and short jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cases import learned
from bench.command import main
from espalier_cli.main import cli
from espalier_lab.scheduling.allocation import judging, learning
from espalier_lab.scheduling.allocation.source import source
from espalier_lab.scheduling.learned.files import LearnedPolicyError, read_policy
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.learners.learner import LearnerSettings


@pytest.fixture(autouse=True)
def few_short_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(source(), jobs=3, slots=source().slots / 50, most_slots=5)
    for module in (judging, learning):
        monkeypatch.setattr(module, "source", lambda: small)


def test_the_benchmark_prints_a_table_for_each_cluster_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(learned, "SETTINGS", LearnerSettings(kept=1.0, episodes=4, steps=8))
    sizes = ["--seeds", "1", "--episodes", "2", "--imitated", "100", "--decisions", "32", "--nodes", "4", "6"]
    picture = tmp_path / "learned.png"
    main(["learned", *sizes, "--picture", str(picture)])
    printed = capsys.readouterr().out
    assert "4 nodes, 2 traces" in printed
    assert "6 nodes, 2 traces" in printed
    for name in ("drf", "optimus-ahead", "fixed counts", "imitation", "learned on 6 types"):
        assert printed.count(f"  {name}") == 2
    assert picture.read_bytes().startswith(b"\x89PNG")


QUICK = ("--imitated", "100", "--decisions", "0")


def test_a_policy_is_learnt_and_compared_with_rules(tmp_path: Path) -> None:
    path, runner = tmp_path / "policy.safetensors", CliRunner()
    options = (*QUICK, "--nodes", "8", "--without-type", "dssm")
    done = runner.invoke(cli, ["policies", "learn", "--output", str(path), *options], catch_exceptions=False)
    assert done.exit_code == 0
    lineage = read_policy(path).lineage
    assert lineage.learnt_from == "DL2's cluster, 7 types of jobs, 8 nodes"
    with pytest.raises(LearnedPolicyError, match="here only workers can be given"):
        LearnedAllocation(read_policy(path))
    arguments = ["policies", "evaluate", str(path), "drf", "--nodes", "8", "--episodes", "2", "--json"]
    done = runner.invoke(cli, arguments, catch_exceptions=False)
    runs = json.loads(done.stdout)["runs"]
    assert [run["policy"] for run in runs] == [str(path), "drf"]
    for run in runs:
        assert run["meanSlots"] == pytest.approx(sum(run["slots"]) / 2)
    done = runner.invoke(cli, [*arguments[:-1]], catch_exceptions=False)
    assert f"{runs[1]['meanSlots']:.2f}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "away"), "away: cannot be read"),
        (("evaluate", "drf", "--nodes", "0"), "--nodes: '0' is not one or several numbers"),
        (("learn", "--output", "here", "--without-type", "magic"), "--without-type: unknown type 'magic'"),
        (
            ("learn", "--output", "here", *QUICK, "--nodes", ",".join(map(str, range(10, 27)))),
            "--nodes: 17 sizes, where 16 clusters are learnt on at a time; name at most 16",
        ),
        (("learn", "--output", "away/here"), "--output: away is not a folder"),
    ],
)
def test_what_cannot_be_used_is_named(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["policies", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
