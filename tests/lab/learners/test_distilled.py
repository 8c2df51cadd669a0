"""Many runs are taught to one network, which answers as they do on the average, also at times between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from espalier_agent.commands.agent import agent
from espalier_agent.data import named_architecture
from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.expected import ExpectedConfig
from espalier_agent.learners.learning import LearningError, LearningProgress
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy, load_policy
from espalier_core.growth.architecture import Architecture
from espalier_core.growth.deepen import deepened
from espalier_core.types.advice import AdviceRequest
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.learners.distilled import DistilledConfig, learn
from espalier_lab.learners.many_seeds import SeededRun, learn_many

QUICK = DistilledConfig(members=3, updates=40, student_updates=150)


@pytest.fixture(scope="module")
def table(make_table: Callable[..., OutcomeTable]) -> OutcomeTable:
    """Return one in which the second of two points is worth deepening, once."""
    return make_table(lambda actions: 0.5 + 0.2 * (actions.count(1) == 1) - 0.05 * actions.count(0), 2, 2)


@pytest.fixture(scope="module")
def learnt(table: OutcomeTable) -> Policy:
    return learn([table], config=QUICK, seed=4)


def chances(policy: Policy, architecture: Architecture, share: float) -> torch.Tensor:
    request = AdviceRequest(
        job="job", architecture=architecture, time_left_seconds=100 * share, time_budget_seconds=100
    )
    return torch.tensor([entry.probability for entry in decide(policy, request).probabilities])


def test_it_answers_as_its_members_do_on_the_average(tables: dict[str, OutcomeTable]) -> None:
    """At all times, most of which are in no table; its members have the seeds that no other policy's have."""
    two = (tables["cnn2-early"], tables["cnn2-late"])
    taught = learn(two, config=DistilledConfig(members=3, updates=80, student_updates=400), seed=4)
    members = learn_many([SeededRun(two, seed) for seed in (12, 13, 14)], config=ExpectedConfig(updates=80))
    start = named_architecture("cnn2")
    apart, off = [], []
    for model in (start, deepened(start, "block1")):
        for share in (0.05, 0.3, 0.55, 0.8, 1.0):
            said = torch.stack([chances(member, model, share) for member in members])
            apart.append((said - said.mean(dim=0)).abs().max().item())
            off.append((chances(taught, model, share) - said.mean(dim=0)).abs().max().item())
    assert max(apart) > 0.08, "or there is nothing to average"
    assert max(off) < 0.05


def test_it_fits_the_table(table: OutcomeTable, learnt: Policy) -> None:
    assert [result.rank for result in evaluate(learnt, [table]).tables] == [1]


def test_the_same_seed_gives_the_same_policy_and_another_one_another(table: OutcomeTable) -> None:
    short = QUICK.model_copy(update={"updates": 3, "student_updates": 3})
    first, again, other = (learn([table], config=short, seed=seed) for seed in (1, 1, 2))
    assert first.version == again.version != other.version
    assert first.lineage.learner == "distilled"
    assert first.lineage.config == short.model_dump(mode="json")


def test_progress_comes_to_its_end(table: OutcomeTable) -> None:
    told: list[LearningProgress] = []
    learn([table], config=QUICK.model_copy(update={"updates": 2, "student_updates": 5}), progress=told.append)
    assert [each.episodes for each in told] == [1, 2, 3, 4, 5]
    assert {each.total_episodes for each in told} == {5}


def test_what_it_cannot_do_is_refused(table: OutcomeTable, learnt: Policy) -> None:
    with pytest.raises(LearningError, match="stacks networks, which encoder lstm does not allow"):
        learn([table], encoder="lstm")
    with pytest.raises(LearningError, match="leave --from out"):
        learn([table], parent=learnt)
    with pytest.raises(LearningError, match="no outcome table"):
        learn([])


def test_the_command_learns_it(table: OutcomeTable, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(table.model_dump_json(exclude_none=True))
    fields = ["--set", "members=2", "--set", "updates=3", "--set", "student_updates=3"]
    words = ["learn", "--learner", "distilled", "--outcomes", str(tmp_path / "table.json"), *fields]
    result = CliRunner().invoke(agent, [*words, "--output", str(tmp_path / "policy")])
    assert result.exit_code == 0, result.stderr
    assert load_policy(tmp_path / "policy").lineage.config["members"] == 2
