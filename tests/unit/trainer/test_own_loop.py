"""What a loop of a user's own may be, and what is said where it may not: without processes."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset, WeightedRandomSampler

from espalier_core.files.documents import read_document
from espalier_core.types.advice import Action
from espalier_core.types.job import ElasticBatch, Insertion
from espalier_core.types.report import Report
from espalier_trainer.checkpoints.document import BatchState, Checkpoint
from espalier_trainer.elastic.member import Member, StepRequest
from espalier_trainer.elastic.membership import Portion, WorkerIdentity, fixed_portion
from espalier_trainer.elastic.states import Code, Command
from espalier_trainer.encoding import decoded
from espalier_trainer.errors import CheckpointMismatchError
from espalier_trainer.own import OwnLoopError, join
from espalier_trainer.process.settings import TermSignal
from espalier_trainer.user_loop.feed import Feed
from espalier_trainer.user_loop.state import UserState
from espalier_trainer.user_loop.worker import UserWorker
from own_loops import DATA, change_job, held_copy, loss_of, recorded, trained
from own_scripts import another_process


class Sets:
    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise AssertionError


def made(lr: float = 0.1) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


@settings(deadline=None)
@given(
    st.sampled_from(ElasticBatch),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(1, 3),
    st.booleans(),
    st.data(),
)
def test_workers_take_each_example_once_however_they_come_and_go(
    policy, world, examples, batch_size, accumulate, shuffle, data
):
    loader = DataLoader(TensorDataset(torch.arange(examples)), batch_size=batch_size, shuffle=shuffle)
    feeds = [Feed(loader, policy, 1, accumulate) for _ in range(5)]
    seen: list[int] = []
    cursor, batches = 0, feeds[0].batches(0)
    while cursor < batches:
        portion = fixed_portion(policy, world, cursor, batches)
        if policy is ElasticBatch.KEEP_GLOBAL:
            portion = Portion(batches=min(data.draw(st.integers(1, 4)), batches - cursor))
        parts = [feeds[rank].part(0, cursor, rank, world, portion) for rank in range(world)]
        loaded = [[(rows, part.load()[0]) for rows in part.pieces] for part in parts]
        assert len({len(part.pieces) for part in parts}) == 1
        if data.draw(st.booleans()):  # a step that was dropped comes again, cut in the same way or in another
            feeds[0].part(0, cursor, 0, world, portion).load()  # and the next one may be dropped in the middle
            world = data.draw(st.integers(1, 5))
            continue
        assert {part.examples for part in parts} == {sum(part.rows for part in parts)}
        assert all(len(batch) == rows or not rows for part in loaded for rows, batch in part)
        assert all(len(batch) for part in loaded for _, batch in part)
        seen += [int(example) for part in loaded for rows, batch in part if rows for example in batch]
        cursor += portion.batches
        world = data.draw(st.integers(1, 5))
    assert len(seen) == len(set(seen)) == min(examples, batches * batch_size * accumulate)
    assert shuffle or seen == sorted(seen)


def test_examples_that_are_loaded_ahead_are_the_same():
    feeds = [
        Feed(DataLoader(DATA, batch_size=4, shuffle=True, num_workers=workers), ElasticBatch.KEEP_GLOBAL, seed=1)
        for workers in (0, 1)
    ]
    for cursor, rank, world in ((0, 0, 1), (1, 0, 1), (1, 1, 2), (2, 0, 2)):
        at_once, ahead = (feed.part(0, cursor, rank, world) for feed in feeds)
        assert torch.equal(at_once.load()[0], ahead.load()[0])


def test_figures_of_the_script_are_in_the_report(leader, tmp_path):
    model, optimizer = made()
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4))
    loop.report(learning=1.0, validation_accuracy=0.1, validation_loss=3.0)  # before there was an epoch
    for epoch in loop.epochs(2):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loop.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        loop.report(validation_accuracy=0.5 + epoch / 4, validation_loss=1.0)
    report = read_document(tmp_path / "report.json", Report)
    figures = {metric.name: metric.value for metric in report.metrics}
    assert (figures["learning"], figures["validation_accuracy"]) == (1.0, 0.75)
    assert (report.epoch, report.step, report.phase) == (2, 6, "Evaluating")
    epochs = recorded(tmp_path, "EpochFinished")
    assert [(event.epoch, event.validation_accuracy) for event in epochs] == [(1, 0.5), (2, 0.75)]


def growing() -> tuple[Any, Any, nn.Module, torch.optim.Optimizer]:
    """Return what a script joins with, where its model may grow."""
    another_process()
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4), grow=True)
    return loop, batches, model, optimizer


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "does not let its model grow; give grow=True where it joins, or set adaptation.trials to Off"),
        ({"grow": True}, "gives no validation loss, by which trials are judged; give validate=, a function"),
        ({"grow": True, "validate": lambda module: 0.0}, ""),
    ],
)
def test_trials_that_a_job_asks_for_and_a_script_cannot_do_are_reported(leader, tmp_path, given, said):
    change_job(tmp_path, training={"elasticBatch": "keepGlobal"}, adaptation={"trials": "Race"})
    model, optimizer = made()
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4), **given)
    trained(loop, batches, model, optimizer, 1)
    told = [event.message for event in recorded(tmp_path, "Warned") if event.reason == "TrialsNotPossible"]
    assert len(told) == bool(said)
    assert all(said in each and "adaptation.trials: Race" in each for each in told)


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"validation_accuracy": 0.5, "validation_loss": 1.0}, 0.5),
        ({"validation_accuracy": 0.5, "validation_loss": 1.0, "test_accuracy": 0.75}, 0.75),
        ({"test_accuracy": 75.0}, None),
        ({"test_accuracy": math.nan, "test_loss": math.inf}, None),
        ({}, None),
    ],
)
def test_the_agent_learns_how_a_job_ended_that_it_advised(advised, advice_body, monkeypatch, tmp_path, figures, told):
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", ends.append)
    agent = advised(lambda body: (200, advice_body("0") if "architecture" in body else b'{"accepted": 1}'))
    loop, batches, model, optimizer = growing()
    trained(loop, batches, model, optimizer, 2)
    loop.report(**figures)
    for end in ends:
        end()
    outcomes = [body for path, body in agent.requests if path == "/v1/outcomes"]
    assert [body["finalAccuracy"] for body in outcomes] == ([] if told is None else [told])
    assert all(body["decisionIds"] == ["d-1"] * 2 for body in outcomes)
    report = read_document(tmp_path / "report.json", Report)
    assert report.phase == "Completed"
    refused = [event for event in recorded(tmp_path, "Warned") if event.reason == "FigureLeftOut"]
    assert bool(refused) == ("test_accuracy" in figures and told is None)
    with pytest.raises(OwnLoopError, match="loop.report: test_loss is 'good'; give a number"):
        loop.report(test_loss="good")


@pytest.mark.parametrize("goodput", [False, True])
def test_the_agent_learns_how_many_examples_a_step_takes(advised, advice_body, tmp_path, goodput):
    """The loader decides on it, not the job; with goodput, it changes."""
    changing = {"batch": "Goodput", "maxBatchSize": 128} if goodput else {}
    change_job(tmp_path, training={"batchSize": 128, **changing})
    agent = advised(lambda body: (200, advice_body(None)))
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop: Any
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=2), accumulate=2, grow=True)
    if goodput:
        loop._run.batching.load(BatchState(batches=3))
    trained(loop, batches, model, optimizer, 2)
    assert agent.requests
    assert {body["batchSize"] for _, body in agent.requests} == {12 if goodput else 4}


def test_the_seed_of_the_job_chooses_what_growth_copies(advised):
    advised(lambda body: (503, b""))
    loop, *_ = growing()
    assert loop._run._growth._adapter.seed == 7


def test_a_consultation_that_a_stop_breaks_off_is_asked_again(advised, advice_body, tmp_path):
    joined: list[Any] = []
    answered = threading.Event()

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        if len(joined) == 1:
            joined[0]._stop.number = signal.SIGTERM  # while the agent thinks
            answered.wait(30)
        return 200, advice_body("0")

    agent = advised(answer)
    loop, *rest = growing()
    joined.append(loop)
    with pytest.raises(SystemExit) as ended:
        trained(loop, *rest, 1)
    answered.set()
    assert ended.value.code == 143
    report = read_document(tmp_path / "report.json", Report)
    assert (report.phase, report.consultations, report.adaptations, report.step) == ("Stopped", 0, (), 0)
    assert len(agent.requests) == 1
    loop, *rest = growing()
    joined.append(loop)
    trained(loop, *rest, 1)
    report = read_document(tmp_path / "report.json", Report)
    assert (report.consultations, [each.result for each in report.adaptations]) == (1, ["Grown"])
    assert len(agent.requests) == 2


def twice(loop: Any, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    loop.backward(loss)
    loop.backward(loss)


def never(loop: Any, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    optimizer.step()


def added_up(loop: Any, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    loop.backward(loss)


def scheduled(loop: Any, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    lr_scheduler.StepLR(optimizer, 1)
    loop.backward(loss)


def unfrozen(loop: Any, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    loop.backward(loss)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (unfrozen, "give all of them to the optimizer before join, and to unfreeze a part, set its requires_grad"),
        (twice, "backward() was called twice for one batch; add the losses and call it once, or give join a list"),
        (
            never,
            "before backward(loss) was called for this one; call it once for each batch, instead of loss.backward()",
        ),
        (added_up, "for gradient accumulation, call it for each batch, or where loop.should_step is true"),
        (scheduled, "make it before join(model, optimizer, loader, scheduler)"),
    ],
)
def test_a_loop_that_would_go_wrong_is_refused_with_the_remedy(leader, body, said):
    model, optimizer = made()
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4, shuffle=True))
    with pytest.raises(OwnLoopError) as raised:  # noqa: PT012
        for _ in loop.epochs(2):
            for inputs, labels in batches:
                optimizer.zero_grad()
                body(loop, nn.functional.cross_entropy(model(inputs), labels), optimizer)
    assert said in str(raised.value)


def test_what_a_script_asks_its_loader_for_the_batches_answer_too(leader, monkeypatch):
    for role in ("base", "extra"):
        monkeypatch.setenv("ESPALIER_WORKER_ROLE", role)
        another_process()
        loader: Any = DataLoader(DATA, batch_size=4)
        batches: Any = join(*made(), loader)[1]
        assert batches is not loader
        assert (len(batches), batches.dataset) == (3, DATA)


def test_a_second_model_of_one_process_is_refused(leader, tmp_path):
    with pytest.raises(OwnLoopError, match="the DataLoader has no batch_size"):
        join(*made(), DataLoader(DATA, batch_size=None))
    model, optimizer = made()
    trained(*join(model, optimizer, DataLoader(DATA, batch_size=4)), model, optimizer, 1)
    report = (tmp_path / "report.json").read_bytes()
    with pytest.raises(OwnLoopError, match="joined already, and a job trains one model; start a job for each"):
        join(*made(), DataLoader(DATA, batch_size=4))
    assert (tmp_path / "report.json").read_bytes() == report


def test_batches_and_backward_outside_of_the_loop_are_refused(leader):
    model, optimizer = made()
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4))
    with pytest.raises(OwnLoopError, match="loop over them within"):
        next(iter(batches))
    with pytest.raises(OwnLoopError, match="outside of the loop over the batches"):
        loop.backward(torch.ones(1, requires_grad=True).sum())
    assert list(loop.epochs(0)) == []
    with pytest.raises(OwnLoopError, match="a script has one loop over epochs"):
        list(loop.epochs(1))


def test_a_second_look_at_the_batches_of_an_epoch_is_refused(leader):
    model, optimizer = made()
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4))
    with pytest.raises(OwnLoopError, match="a second time in one epoch.*not given to join"):  # noqa: PT012
        for _ in loop.epochs(2):
            for inputs, labels in batches:
                optimizer.zero_grad()
                loop.backward(nn.functional.cross_entropy(model(inputs), labels))
                optimizer.step()
            sum(len(labels) for _, labels in batches)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ([DATA[:4]], "a torch DataLoader of a map-style data set"),
        ((DATA[each] for each in range(12)), "a torch DataLoader of a map-style data set"),
        (DataLoader(TensorDataset(torch.zeros(0, 2)), batch_size=4), "the data set of the DataLoader is empty"),
        (DataLoader(DATA, batch_size=None), "the DataLoader has no batch_size"),
        (DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 12, 12)), "a sampler WeightedRandomSampler"),
        (DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=8)), "a torch.utils.data.Subset for an epoch"),
        (DataLoader(DATA, 4, sampler=RandomSampler(range(20), num_samples=12)), "a sampler RandomSampler"),
        (DataLoader(DATA, 4, sampler=SequentialSampler(range(8))), "a sampler SequentialSampler"),
    ],
)
def test_a_loader_without_an_order_that_could_be_shared_is_refused(leader, loader, said):
    with pytest.raises(OwnLoopError, match=said):
        join(*made(), loader)


@pytest.mark.parametrize(("sampler", "shuffled"), [(RandomSampler(DATA), True), (SequentialSampler(range(12)), False)])
def test_a_sampler_of_the_whole_data_set_is_taken(sampler, shuffled):
    feed = Feed(DataLoader(DATA, 4, sampler=sampler), ElasticBatch.KEEP_GLOBAL, seed=1)
    (first, *_) = feed.part(0, 0, 0, 1).load()
    assert torch.equal(first, DATA.tensors[0][:4]) is not shuffled


def test_what_could_not_be_given_to_others_is_refused_also_alone():
    loader = DataLoader(DATA, batch_size=4)
    model, optimizer = made()
    with pytest.raises(OwnLoopError, match="the state of Sets holds a set; only tensors"):
        join(model, optimizer, loader, Sets())
    with pytest.raises(OwnLoopError, match="trains a parameter that is not the model's"):
        join(nn.Linear(2, 2), optimizer, loader)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(OwnLoopError, match="join: all 2 parameters of the model are frozen"):
        join(frozen, torch.optim.SGD(frozen.parameters(), lr=0.1), loader)
    loop, same = join(model, optimizer, loader)
    assert same is loader
    with pytest.raises(OwnLoopError, match=r"call epochs\(count\)"):
        loop.epochs()
    lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(OwnLoopError, match="make it before join"):
        loop.backward(model(torch.ones(1, 2)).sum())


def test_an_environment_without_a_job_file_ends_the_process_and_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setenv("ESPALIER_RENDEZVOUS", "somewhere:29400")
    with pytest.raises(SystemExit) as ended:
        join(*made(), DataLoader(DATA, batch_size=4))
    assert ended.value.code == 2
    assert "ESPALIER_JOB_FILE is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 3]),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=10),
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.5)], [2]
        ),
    ],
)
def test_a_scheduler_goes_on_where_it_was(make):
    model, optimizer = made()
    scheduler = make(optimizer)
    other_optimizer = made()[1]
    other = make(other_optimizer)
    state = UserState(model, optimizer, [scheduler])
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    (kept,) = json.loads(json.dumps(state.state()))["others"]
    other.load_state_dict(decoded(kept, {}))
    other_optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(4):
        assert other_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        for each, schedule in ((optimizer, scheduler), (other_optimizer, other)):
            each.step()
            schedule.step()


def test_a_scheduler_that_has_seen_nothing_yet_is_carried_as_it_is():
    """Its best is infinite, for which JSON has no word."""
    _, optimizer = made()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
    (kept,) = json.loads(json.dumps(UserState(*made(), [scheduler]).state(), allow_nan=False))["others"]
    assert decoded(kept, {}) == scheduler.state_dict()
    assert scheduler.best == math.inf


@pytest.mark.parametrize("case", ["head alone", "all, some of them frozen", "the trained ones"])
def test_an_optimizer_of_a_part_is_carried(case, make_checkpoint):
    states = []
    for _ in range(2):
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        model[0].requires_grad_(case == "head alone")
        parameters = {
            "head alone": model[2].parameters(),
            "all, some of them frozen": model.parameters(),
            "the trained ones": (each for each in model.parameters() if each.requires_grad),
        }[case]
        states.append(UserState(model, torch.optim.SGD(parameters, lr=0.1, momentum=0.9), []))
    first, second = states
    first.model(torch.ones(1, 2)).sum().backward()
    first.optimizer.step()
    held = held_copy(first, make_checkpoint)
    second.load(held.capture())
    assert first.digest(first.network) == second.digest(second.network)
    assert len(second.optimizer.param_groups[0]["params"]) == len(first.optimizer.param_groups[0]["params"])
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    other = UserState(model, torch.optim.SGD(model[0].parameters(), lr=0.1), [])
    with pytest.raises(CheckpointMismatchError, match="the optimizer's parameters differ"):
        other.load(held.capture())


@pytest.mark.parametrize("held", ["left out", "frozen and held", "trained"])
def test_growth_beside_what_an_optimizer_leaves_out_is_carried(held, make_checkpoint):
    example, states = torch.ones(2, 2), []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        model[0].requires_grad_(held != "frozen and held")
        parameters = model[2:].parameters() if held == "left out" else model.parameters()
        state = UserState(model, torch.optim.Adam(parameters), [])
        assert state.may_grow(example, Insertion.EXACT, ["Deepen"]) == ""
        states.append(state)
    first, second = states
    for point in ("0", "2"):
        first.adopt(first.network.grown(Action.deepen(point), example, Insertion.EXACT, 0))
        first.model(example).sum().backward()
        first.optimizer.step()
        network = first.network
        kept = held_copy(first, make_checkpoint, architecture=network.architecture, growth=network.history)
        second.load(kept.capture())
        assert first.digest(first.network) == second.digest(second.network)
    count = sum(len(group["params"]) for group in second.optimizer.param_groups)
    assert count == len(list(second.model.parameters())) - (4 if held == "left out" else 0)
    assert len(list(second.model.parameters())) == 6 + 4


def test_with_the_batch_scaled_only_the_step_itself_is_faster():
    """A scheduler whose next rate follows from the last one must not see the scaled one."""
    from espalier_trainer.user_loop.feed import Part
    from espalier_trainer.user_loop.loop import OptimizerHooks, UserStep

    model, optimizer = made(lr=0.5)
    nn.init.zeros_(model.weight)
    state = UserState(model, optimizer, [])
    hooks = OptimizerHooks(optimizer)
    part = Part((4,), 12, Portion(batches=3, rate=3.0), lambda: None)
    hooks.step = UserStep(state, part, None, sync_batch_norm=False)
    hooks.step.enter_batch()
    hooks.step.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    assert model.weight.tolist() == [[-1.5, -1.5], [-1.5, -1.5]]
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert hooks.step.done


def stepping(loop: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """Return what computes a batch, and steps where it is time unless it is told not to."""

    def train(batch: Any, *, steps: bool = True) -> None:
        optimizer.zero_grad()
        loop.backward(loss_of(model, batch))
        if steps and loop.should_step:
            optimizer.step()

    return train


def ways_to_leave() -> list[Any]:
    """Return ways to look at batches, with the numbers of the optimizer's steps in an epoch of six batches."""

    def enough(loop: Any, batches: Any, train: Callable[..., None]) -> None:
        for number, batch in enumerate(batches):
            if number == 2:  # of a batch that is not computed
                break
            train(batch)

    def spike(loop: Any, batches: Any, train: Callable[..., None]) -> None:
        for number, batch in enumerate(batches):
            train(batch, steps=number < 2)
            if number == 2:  # of one that is computed, and not stepped
                break

    def peek(loop: Any, batches: Any, train: Callable[..., None]) -> None:
        assert len(next(iter(batches))) == 2
        for batch in batches:
            train(batch)

    def parts(loop: Any, batches: Any, train: Callable[..., None]) -> None:
        for _ in range(2):
            for number, batch in enumerate(batches):
                train(batch)
                if number == 1:
                    break

    return [(enough, 1, 2), (spike, 1, 2), (peek, 1, 6), (parts, 1, 4), (enough, 2, 1), (peek, 2, 3), (parts, 2, 2)]


@pytest.mark.parametrize(("epoch", "accumulate", "steps"), ways_to_leave())
def test_a_step_within_which_the_script_leaves_its_batches_does_not_count(leader, tmp_path, epoch, accumulate, steps):
    model, optimizer = made()
    taken: list[int] = []
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=2), accumulate=accumulate)

    for _ in loop.epochs(2):
        epoch(loop, batches, stepping(loop, model, optimizer))
    report = read_document(tmp_path / "report.json", Report)
    assert (report.epoch, report.step, len(taken)) == (2, 2 * steps, 2 * steps)


def lone_worker(state: UserState, feed: Feed, make_checkpoint: Callable[..., Checkpoint]) -> UserWorker:
    """Return the loop of an extra worker that holds a state, without a rendezvous."""
    held = held_copy(state, make_checkpoint)
    member = Member(held, 0, state.device, WorkerIdentity(), stop=lambda: False)
    return UserWorker(state, held, feed, member, None, TermSignal(), sync_batch_norm=False)


@pytest.mark.parametrize(("epoch", "accumulate", "steps"), ways_to_leave())
def test_all_workers_may_leave_their_batches_within_a_step(make_checkpoint, epoch, accumulate, steps):
    model, optimizer = made()
    state = UserState(model, optimizer, [])
    feed = Feed(DataLoader(DATA, batch_size=2), ElasticBatch.KEEP_GLOBAL, 0, accumulate)
    loop = lone_worker(state, feed, make_checkpoint)

    def requests() -> Any:
        for number in range(2):
            while number not in seen and (cursor := loop._held.capture().state.cursor) < 6 // accumulate:
                yield StepRequest(OneMember(), Command(Code.STEP, number, cursor))
            yield StepRequest(OneMember(), Command(Code.EPOCH, number))

    seen: list[int] = []
    loop._requests = requests()
    loop._wait_to_end = lambda: None
    for number in loop.epochs():
        epoch(loop, loop, stepping(loop, model, optimizer))
        seen.append(number)
    assert seen == [0, 1]
    assert loop._held.step == 2 * steps


def _breaks(loop: Any) -> None:
    for _ in loop.epochs():
        with contextlib.nullcontext():
            break


def _returns(loop: Any) -> list[int]:
    for number in enumerate(loop.epochs()):
        for _ in loop:
            return [*number]
    raise AssertionError


def _breaks_while_it_handles_an_error(loop: Any) -> None:
    for _ in loop.epochs():
        try:
            int("one")
        except ValueError:
            break


def _breaks_a_wrapped_one(loop: Any) -> None:
    def shown(numbers: Any) -> Any:
        yield from numbers

    for _ in shown(number for number in loop.epochs()):
        break


def _raises(loop: Any) -> None:
    for _ in loop.epochs():
        raise ValueError("one")


def _raises_within_a_try(loop: Any) -> None:
    for _ in loop.epochs():
        try:
            for _ in loop:
                int("one")
        finally:
            loop.report()


def following(
    model: nn.Module, optimizer: torch.optim.Optimizer, make_checkpoint: Callable[..., Checkpoint]
) -> UserWorker:
    """Return the loop of an extra worker that holds a state; its turns are still to be given."""
    state = UserState(model, optimizer, [])
    feed = Feed(DataLoader(DATA, batch_size=4), ElasticBatch.KEEP_GLOBAL, seed=0)
    return lone_worker(state, feed, make_checkpoint)


@pytest.mark.parametrize(
    ("script", "left"),
    [
        *((_breaks, True), (_returns, True), (_breaks_while_it_handles_an_error, True), (_breaks_a_wrapped_one, True)),
        *((_raises, False), (_raises_within_a_try, False)),
    ],
)
def test_a_worker_knows_a_loop_that_its_script_has_left_from_one_that_an_error_ended(make_checkpoint, script, left):
    loop = following(*made(), make_checkpoint)
    loop._requests = iter([StepRequest(OneMember(), Command(Code.STEP, 0, 0))])
    found: list[bool] = []
    loop._loop_left = lambda: found.append(True)
    with pytest.warns(FutureWarning, match="stop") if left else pytest.raises(ValueError, match="one"):
        script(loop)
    assert found == [True] * left


def test_a_worker_that_cannot_read_the_state_of_its_leader_says_so_and_ends(make_checkpoint, capsys):
    def requests() -> Any:
        yield StepRequest(OneMember(), Command(Code.STEP, 0, 0))
        raise CheckpointMismatchError("install the package")

    model, optimizer = made()
    loop = following(model, optimizer, make_checkpoint)
    loop._requests = requests()
    with pytest.raises(SystemExit) as ended:
        trained(loop, loop, model, optimizer, 1)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "install the package\n"


class OneMember:
    """A group of this worker alone."""

    rank, world, device, buckets = 0, 1, torch.device("cpu"), None
    exchanged: float | None = None

    def sending(self, tensor: torch.Tensor) -> OneMember:
        """Begin to sum over one."""
        return self

    def sent(self) -> None:
        """All of one have begun."""

    def wait(self) -> None:
        """End it."""


def test_a_worker_that_left_an_epoch_early_goes_through_it_again_with_another_state(make_checkpoint):
    model, optimizer = made()
    loop = following(model, optimizer, make_checkpoint)

    def requests() -> Any:
        yield StepRequest(OneMember(), Command(Code.STEP, 0, 0))
        loop._held.take(loop._held.capture().copied())  # the leader was started again, from before
        yield StepRequest(OneMember(), Command(Code.STEP, 0, 0))
        yield StepRequest(OneMember(), Command(Code.STEP, 0, 1))

    loop._requests = requests()
    seen: list[int] = []
    with pytest.raises(OwnLoopError, match="left epoch 0 early and the leader did not"):  # noqa: PT012
        for epoch in loop.epochs():
            seen.append(epoch)
            for inputs, labels in loop:
                optimizer.zero_grad()
                loop.backward(nn.functional.cross_entropy(model(inputs), labels))
                optimizer.step()
                break
    assert seen == [0, 0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(torch.relu(self.up(inputs)))


@pytest.mark.parametrize("insertion", ["Scaled", "Exact"])
def test_the_steps_before_and_after_a_scaled_growth_tell_how_far_the_loss_jumps(
    advised, advice_body, tmp_path, insertion
):
    change_job(tmp_path, adaptation={"actions": ["AddBlock"], "insertion": insertion, "maxAdaptations": 2})
    asked: list[Any] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body)
        answered = json.loads(advice_body("0"))
        answered["action"] = {"kind": "Nothing"} if len(asked) == 1 else {"kind": "AddBlock", "target": "1"}
        return 200, json.dumps(answered).encode()

    advised(answer)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), Block(), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4), grow=True)
    losses = trained(loop, batches, model, optimizer, 3)
    declined, grown = read_document(tmp_path / "report.json", Report).adaptations
    assert (declined.result, grown.result) == ("Declined", "Grown")
    assert declined.loss_before is declined.loss_after is None
    jump = (losses[2], losses[3]) if insertion == "Scaled" else (None, None)
    assert (grown.loss_before, grown.loss_after) == jump
    told = [event.adaptation for event in recorded(tmp_path, "AdaptationFinished")]
    assert [(one.loss_before, one.loss_after) for one in told] == [(None, None), jump]


def _one_epoch(model: nn.Module, **options: Any) -> Any:
    another_process()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4), **options)
    trained(loop, batches, model, optimizer, 1 if loop._run.progress.epoch == 0 else 2)
    return loop


def test_a_run_that_has_not_grown_resumes_where_the_script_no_longer_lets_it_grow(leader, tmp_path):
    _one_epoch(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), grow=True)
    _one_epoch(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    assert read_document(tmp_path / "report.json", Report).epoch == 2


def test_a_resumed_run_offers_the_operations_that_its_job_has_come_to_allow(leader, tmp_path):
    _one_epoch(nn.Sequential(nn.Linear(2, 2), Block(), nn.Linear(2, 2)), grow=True)
    change_job(tmp_path, adaptation={"actions": ["Deepen", "AddBlock"]})
    loop = _one_epoch(nn.Sequential(nn.Linear(2, 2), Block(), nn.Linear(2, 2)), grow=True)
    assert [run.id for run in loop._run.state.network.architecture.blocks] == ["1"]


def test_a_grown_model_that_can_no_longer_grow_says_why(advised, advice_body, capsys):
    class Untraceable(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs * float(inputs.sum() > 0))

    def layers() -> list[nn.Module]:
        return [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)]

    advised(lambda body: (200, advice_body("0")))
    _one_epoch(nn.Sequential(*layers()), grow=True)
    Untraceable.__name__ = "Sequential"
    for model, options, said in (
        (nn.Sequential(*layers()), {}, "the model has grown, and this script does not allow growth"),
        (
            Untraceable(*layers()),
            {"grow": True},
            "the model has grown, and here it cannot: the model will be trained as",
        ),
    ):
        with pytest.raises(SystemExit):
            _one_epoch(model, **options)
        assert said in capsys.readouterr().err
