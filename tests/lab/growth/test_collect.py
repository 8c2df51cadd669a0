"""Tables that are really collected, from the digits net with budgets of a fraction of a second."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from collecting import COST, JOB, WIDENING_COST, job_with, setting
from espalier_cli.main import cli
from espalier_core.types.advice import Action
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.growth.collect.assemble import assemble
from espalier_lab.growth.collect.collecting import collect
from espalier_lab.growth.collect.plan import CollectionRun, RunPurpose, runs_for
from espalier_lab.growth.collect.state import WorkFolder
from espalier_lab.growth.collect.training import CollectError, Collection, Time, train
from espalier_lab.run_store import RunStoreError
from espalier_lab.virtual_run import WallScheduler, deepened_from_scratch
from espalier_lab.virtual_time import ReplicaChange, Scripted, VirtualScheduler
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.data import load_data
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.run.services import Services
from waiting import until

SCHEDULES = [
    {"schedule": {"name": "BudgetLinear"}},
    {"schedule": {"name": "Exponential", "decay": 0.9}},
    {"schedule": {"name": "torch:ReduceLROnPlateau", "options": {"patience": 0}}, "optimizer": {"name": "AdamW"}},
]
DEEPER = (Action.deepen("block0"), Action.nothing(), Action.deepen("block2"))
WIDER = (Action.widen("block0.0"), Action.deepen("block0"), Action.widen("block0.0"))
WIDENS = setting(job_with("Deepen", "Widen"), decisions=3, step_cost=WIDENING_COST)


@pytest.mark.sweep("optimizers and schedules that resume")
@pytest.mark.parametrize(
    ("collection", "sequence", "actions"),
    [
        *((setting(job_with(**training), decisions=3), (0, 3, 2), DEEPER) for training in SCHEDULES),
        (WIDENS, (3, 0, 3), WIDER),
    ],
    ids=["linear", "exponential", "plateau", "widening"],
)
def test_a_sequence_of_edges_ends_as_the_same_sequence_in_one_go(
    collection: Collection, sequence: tuple[int, ...], actions: tuple[Action, ...]
) -> None:
    """Bit for bit: accuracy, times, steps; and what checkpoints describe is what actions make of the model."""
    seed = 7
    _, checkpoint = train(collection, CollectionRun(RunPurpose.TRUNK, seed), None)
    assert checkpoint is not None
    left: list[float] = []
    architecture = collection.architecture
    for length in range(1, 4):
        record, following = train(collection, CollectionRun(RunPurpose.EDGE, seed, sequence[:length]), checkpoint)
        left += record.time_left_s
        action = collection.actions[sequence[length - 1]]
        architecture = architecture if action == Action.nothing() else action.carried_out(architecture)
        checkpoint = following or checkpoint
        assert following is None or following.state.architecture == architecture

    seed_everything(seed)
    data = load_data(collection.job.spec.training.dataset)
    model = build_model(collection.job.spec.training.model, data.classes, data.example_input())
    advisor = Scripted(actions)
    scheduler = VirtualScheduler(0.25, collection.cost, (ReplicaChange(0.05, 2),))
    trainer = Trainer(collection.job, model, data, Services(scheduler, advisor=advisor), seed=seed)
    whole = trainer.run()
    assert trainer.network.architecture == architecture
    assert (record.accuracy, record.steps, record.used_s) == (whole.test_accuracy, whole.steps, whole.used_seconds)
    assert left == [request.time_left_seconds for request in advisor.asked]
    assert len(set(left)) == 3


def test_a_run_before_a_decision_stops_at_an_epoch_boundary_after_the_arrival() -> None:
    collection = setting(job_with())
    record, checkpoint = train(collection, CollectionRun(RunPurpose.TRUNK, 0), None)
    assert checkpoint is not None
    assert checkpoint.state.cursor == 0
    assert checkpoint.state.consultations == 0
    assert record.accuracy is None
    assert 0.05 <= record.used_s < 0.05 + 17 * 0.002
    first, after = train(collection, CollectionRun(RunPurpose.EDGE, 0, (1,)), checkpoint)
    assert after.state.epoch == checkpoint.state.epoch + 1
    assert first.time_left_s == (0.25 - record.used_s,)


def test_controls_restart_the_rate_speed_up_steps_or_begin_deeper() -> None:
    collection = setting(job_with())
    _, trunk = train(collection, CollectionRun(RunPurpose.TRUNK, 0), None)
    nothing = trunk
    for actions in ((3,), (3, 3)):
        plain, following = train(collection, CollectionRun(RunPurpose.EDGE, 0, actions), nothing)
        nothing = following or nothing
    restarted, _ = train(collection, CollectionRun(RunPurpose.RESTART, 0), trunk)
    assert restarted.steps == plain.steps
    assert len(restarted.time_left_s) == 2
    faster, _ = train(collection, CollectionRun(RunPurpose.THROUGHPUT, 0), trunk)
    after = plain.steps - trunk.state.step
    assert faster.steps - trunk.state.step == pytest.approx(1.8 * after, abs=2)
    scratch, _ = train(collection, CollectionRun(RunPurpose.SCRATCH, 0, (0, 0)), None)
    assert scratch.steps == pytest.approx(0.25 / (0.002 + 2 * 0.0006), abs=1.5)


def test_a_net_from_scratch_need_not_come_by_all_decisions() -> None:
    collection = setting(job_with(), start_at=0.18)
    scratch, _ = train(collection, CollectionRun(RunPurpose.SCRATCH, 0, (0, 0)), None)
    assert len(scratch.time_left_s) == 1, "its epochs are longer, so that one fewer ends in time"
    assert scratch.accuracy is not None


def test_the_deepest_net_from_scratch_has_random_weights_where_it_is_deeper() -> None:
    collection = setting(job_with())
    data = load_data(collection.job.spec.training.dataset)
    torch.manual_seed(3)
    start = build_model(collection.job.spec.training.model, data.classes, data.example_input())
    net = deepened_from_scratch(
        start, ["block0"] * 2, data.example_input(), collection.job.spec.adaptation.described_insertion
    )
    known = dict(start.named_parameters())
    added = {name: value for name, value in net.named_parameters() if name not in known}
    assert len(added) == 4
    for name, value in net.named_parameters():
        if name in known:
            assert torch.equal(value, known[name])
    kernels = [value for name, value in added.items() if name.endswith("weight")]
    identity = torch.nn.init.dirac_(torch.empty_like(kernels[0]))
    assert not torch.allclose(kernels[0], identity, atol=0.05)
    assert not torch.equal(*kernels)


def collected(folder: Path, collection: Collection, seeds: range, parallel: int, *, controls: bool = True) -> str:
    runs = runs_for(seeds, 3, collection.decisions, controls=controls)
    work = WorkFolder(folder)
    with work.held():
        work.begin(collection)
        records = collect(collection, runs, work, parallel, lambda done, total, left: None, pytest.fail)
    table = assemble(collection, records, seeds, "test")
    return json.dumps(table.to_json())


def test_two_at_a_time_give_the_table_of_one_at_a_time_and_seeds_can_be_added(tmp_path: Path) -> None:
    setup = setting(job_with(), decisions=1)
    alone = collected(tmp_path / "alone", setup, range(2), 1, controls=False)
    assert collected(tmp_path / "both", setup, range(1), 2, controls=False) != alone
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "both" / "runs").iterdir()}
    assert collected(tmp_path / "both", setup, range(2), 2, controls=False) == alone
    assert before == {path: path.stat().st_mtime_ns for path in before}
    # Checkpoints are not kept where nothing continues from them any more.
    assert list((tmp_path / "both" / "checkpoints").iterdir()) == []


def command(output: Path, *more: str) -> list[str]:
    given = ["--start-at", "20%", "--time-budget", "0.15", "--decisions", "1", "--step-cost", COST]
    return ["agent", "collect", str(JOB), *given, "--no-controls", "--output", str(output), *more]


TWO_RUNS = """
import time
from espalier_lab.growth.collect.state import WorkFolder
from espalier_cli.main import main
keep, kept = WorkFolder.keep, []
def keep_two(self, run, record):
    keep(self, run, record)
    kept.append(run)
    while len(kept) == 2:
        time.sleep(1)
WorkFolder.keep = keep_two
main()
"""
"""The command, which does no more once it has kept two runs."""


@pytest.mark.slow
def test_killed_it_goes_on_from_what_is_done_and_gives_the_same_table(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.json", tmp_path / "killed.json"
    first = CliRunner().invoke(cli, command(whole))
    assert first.exit_code == 0, first.output
    assert re.search(r"^5/5 runs", first.stderr, re.MULTILINE)
    assert "4 sequences, 1 seeds" in first.stdout
    assert not (tmp_path / "whole.json.work").exists()

    runs = tmp_path / "killed.json.work" / "runs"
    program = [sys.executable, "-c", TWO_RUNS, *command(killed)]
    process = subprocess.Popen(program, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: runs.is_dir() and len(list(runs.glob("seed*.json"))) == 2, "two runs are kept")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not killed.exists()
    before = {path: path.stat().st_mtime_ns for path in runs.glob("seed*.json")}
    assert len(before) == 2

    again = CliRunner().invoke(cli, command(killed))
    assert again.exit_code == 0, again.output
    assert re.search(rf"^{len(before)}/5 runs", again.stderr, re.MULTILINE)
    assert killed.read_text() == whole.read_text()


def test_a_table_has_deviations_over_the_seeds_and_controls_and_damaged_state_is_trained_again(tmp_path: Path) -> None:
    setup = setting(job_with(), decisions=1)
    whole = collected(tmp_path, setup, range(2), 2)
    table = OutcomeTable.model_validate(json.loads(whole))
    assert table.seeds == (0, 1)
    controls = [control.name for control in table.controls or ()]
    assert controls == ["restart", "throughput", "scratch block0", "scratch block1", "scratch block2"]
    for one in (*table.sequences, *(table.controls or ())):
        assert len(one.accuracies) == 2
        assert one.accuracy_std == pytest.approx(abs(one.accuracies[0] - one.accuracies[1]) / 2**0.5, abs=1e-4)

    records = sorted((tmp_path / "runs").iterdir())
    records[0].write_text('{"version": 1')
    (tmp_path / "runs" / "seed-0.trunk.json").unlink()
    work = WorkFolder(tmp_path)
    runs = runs_for(range(2), 3, 1, controls=True)
    done, complaints = work.done(runs, 1)
    assert len(done) == len(runs) - 2
    assert [str(records[0]) in complaint for complaint in complaints] == [True]
    again = collect(setup, runs, work, 1, lambda done, total, left: None, lambda message: None)
    table = assemble(setup, again, range(2), "test")
    assert json.dumps(table.to_json()) == whole


def test_a_run_whose_checkpoint_is_lost_is_trained_again(tmp_path: Path) -> None:
    collection = setting(job_with(), decisions=1)
    work, trunk = WorkFolder(tmp_path), CollectionRun(RunPurpose.TRUNK, 0)
    runs = runs_for(range(1), 3, 1, controls=False)
    with work.held():
        record, checkpoint = train(collection, trunk, None)
        assert checkpoint is not None
        work.save(trunk, checkpoint)
        work.keep(trunk, record)
    assert work.done(runs, 1) == ({trunk: record}, [])
    work.forget_checkpoint(trunk)
    done, complaints = work.done(runs, 1)
    assert done == {}
    assert "no whole checkpoint" in complaints[0]


def test_a_folder_of_another_collection_is_refused_with_what_differs(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path)
    work.begin(setting(job_with()))
    work.begin(setting(job_with()))
    with pytest.raises(RunStoreError, match=r"start_at_s: 0.05 there, 0.1 here\)"):
        work.begin(setting(job_with(), start_at=0.1))
    with pytest.raises(RunStoreError, match="job: "):
        work.begin(setting(job_with(batchSize=32)))
    with work.held(), pytest.raises(RunStoreError, match="another collection works in it"), work.held():
        pytest.fail("two hold it")
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(RunStoreError, match=r"holds thesis\.txt"):
        work.clear()


def test_a_measured_cost_is_that_of_the_state_when_it_goes_on(tmp_path: Path) -> None:
    collection = setting(job_with())
    work = WorkFolder(tmp_path)
    assert work.step_cost(collection.points) is None
    work.begin(collection)
    assert work.step_cost(collection.points) == collection.cost


def test_a_budget_that_ends_before_the_last_decision_is_an_error() -> None:
    collection = setting(job_with(), decisions=3, start_at=0.22)
    record, checkpoint = train(collection, CollectionRun(RunPurpose.TRUNK, 0), None)
    assert 0.22 < record.used_s < 0.25
    with pytest.raises(CollectError, match=r"seed-0.edge-3: the budget of 0.25 s ends before all 3 decisions"):
        train(collection, CollectionRun(RunPurpose.EDGE, 0, (3,)), checkpoint)


def test_wall_time_is_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a millisecond passes from each look at it to the next, however busy the machine is."""
    looks = itertools.count()
    ticking = partial(WallScheduler, clock=lambda: next(looks) / 2000)
    monkeypatch.setattr("espalier_lab.growth.collect.training.WallScheduler", ticking)
    collection = setting(job_with(), decisions=1, step_cost=None, time_kind=Time.WALL)
    trunk, *edges = runs_for(range(1), 3, 1, controls=False)
    record, checkpoint = train(collection, trunk, None)
    records = {trunk: record, **{edge: train(collection, edge, checkpoint)[0] for edge in edges}}
    table = assemble(collection, records, range(1), "test")
    assert "wall time" in table.source
    assert table.controls is None
    for sequence in table.sequences:
        assert 0 < sequence.time_left_s[0] < 0.25 - 0.05
    assert table.sequences[0].accuracies == (table.sequences[0].accuracy,)
    assert table.sequences[0].accuracy_std is None


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--start-at", "soon"], 2, "'soon' is not a moment; write 20s"),
        (["--start-at", "100%"], 2, "--start-at: 0.15 s is not before the end of the budget of 0.15 s"),
        (["--step-cost", "2"], 2, "--step-cost '2': 1 numbers; write 4 numbers of ms"),
        (["--time-budget", "-1"], 2, "--time-budget: is -1.0; input should be greater than 0"),
        (["--device", "abacus"], 2, "--device abacus: "),
        (["--time", "wall"], 2, "--step-cost is for virtual time"),
        (["--decisions", "0"], 2, "0 is not in the range"),
        (["--throughput", "0.5"], 2, "0.5 is not in the range"),
        (["--output", "/nowhere/t.json"], 2, "there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, more: list[str], code: int, message: str) -> None:
    outcome = CliRunner().invoke(cli, command(tmp_path / "t.json", *more))
    assert outcome.exit_code == code
    assert message in outcome.output
    assert not (tmp_path / "t.json").exists()


def test_a_model_that_cannot_grow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_a_classifier.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    job = tmp_path / "job.yaml"
    job.write_text(JOB.read_text().replace("model: {name: digits}", "model: {entrypoint: 'only_a_classifier:net'}"))
    outcome = CliRunner().invoke(cli, [part if part != str(JOB) else str(job) for part in command(tmp_path / "t.json")])
    assert outcome.exit_code == 2, outcome.output
    assert "error: model only_a_classifier:net: cannot grow" in outcome.output


DIVERGES = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU())
        self.last = torch.nn.Linear(8, 10)
        self.scale = torch.nn.Parameter(torch.tensor(0.1))

    def forward(self, images):
        return self.last(self.layers(images)) * torch.exp(self.scale**2)
"""


def test_training_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "diverges.py").write_text(DIVERGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_with(model={"entrypoint": "diverges:Net"}, optimizer={"learningRate": 100}, schedule={"name": "Constant"})
    setup = setting(job, decisions=1, step_cost="2,1")
    with pytest.raises(CollectError, match=r"seed-0\.trunk: .*lower training\.optimizer\.learningRate"):
        collected(tmp_path / "work", setup, range(1), 1)
    assert list((tmp_path / "work").glob("runs/*")) == []


def test_the_agents_own_program_has_no_collect_or_judge() -> None:
    """They need a trainer, which the agent's image has not."""
    from espalier_agent.commands.agent import COMMANDS
    from espalier_agent.commands.agent import agent as own
    from espalier_cli.agent_command import agent

    context = click.Context(agent)
    assert "collect" in agent.list_commands(context)
    assert set(own.list_commands(context)) == set(COMMANDS) == set(agent.list_commands(context)) - {"collect", "judge"}
