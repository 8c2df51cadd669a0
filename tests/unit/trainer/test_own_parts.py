"""What a script gives to `join` besides model and optimizer, and steps of several batches: alone, in this process."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from espalier_core.files.documents import read_document
from espalier_core.growth.architecture import GrowthError
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_core.types.report import Report
from espalier_trainer.models.gpt import gpt
from espalier_trainer.net2net import deepen, grow_optimizer, plan_widening, widen_optimizer, widened, widening_groups
from espalier_trainer.own import OwnLoopError, join
from espalier_trainer.user_loop.loop import UserStep
from espalier_trainer.user_loop.state import UserState
from own_loops import Shadow, change_job, held_copy, loss_of, trained
from own_scripts import another_process

INPUTS = torch.randn(26, 2, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS.sum(1) > 0).long()


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))


def made(lr: float = 0.1) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = net()
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def batches(size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=size)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in model.state_dict().values()])


def accumulated(size: int, accumulate: int, *, guarded: bool) -> tuple[nn.Module, int, list[bool]]:
    """Train two epochs as a script does; `guarded`: it asks when to step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    another_process()
    loop, loader = join(model, optimizer, batches(size), accumulate=accumulate)
    steps, asked = 0, []
    for _ in loop.epochs(2):
        for batch in loader:
            if not guarded:
                optimizer.zero_grad()
            loop.backward(loss_of(model, batch))
            asked.append(loop.should_step)
            steps += model[0].weight.grad is not None
            if loop.should_step or not guarded:
                optimizer.step()
                optimizer.zero_grad()
    return model, steps, asked


@pytest.mark.parametrize("guarded", [True, False])
def test_accumulated_gradients_are_those_of_a_large_batch(leader, guarded, tmp_path, monkeypatch):
    whole, steps, _ = accumulated(12, 1, guarded=guarded)
    monkeypatch.setenv("ESPALIER_CHECKPOINT_DIR", str(tmp_path / "other"))
    parts, more, asked = accumulated(4, 3, guarded=guarded)
    assert (steps, more) == (4, 4)
    assert asked == [False, False, True] * 4
    assert torch.allclose(weights(whole), weights(parts), atol=1e-6)
    assert read_document(tmp_path / "report.json", Report).step == 4


@settings(deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 6), st.integers(2, 4), st.booleans(), st.sampled_from(["loader", "list", "lazy"])
)
def test_alone_a_step_follows_the_mean_over_its_examples(examples, size, accumulate, drop_last, kind):
    """Where the sizes of batches are not known beforehand, it follows the mean over batches."""
    model = nn.Linear(1, 1, bias=False)
    numbers = torch.randn(examples, 1, generator=torch.Generator().manual_seed(examples))
    given_loader: Any = DataLoader(TensorDataset(numbers), batch_size=size, drop_last=drop_last)
    if kind != "loader":
        given_loader = list(given_loader) if kind == "list" else (batch for batch in list(given_loader))
    loop, loader = join(model, torch.optim.SGD(model.parameters(), lr=0.1), given_loader, accumulate=accumulate)
    taken: list[torch.Tensor] = []
    for _ in loop.epochs(1):
        for (batch,) in loader:
            taken.append(batch)
            loop.backward(model(batch).mean())
            if loop.should_step:
                means = taken if kind == "loader" else [one.mean(0, keepdim=True) for one in taken]
                expected = torch.cat(means).mean()
                torch.testing.assert_close(model.weight.grad.squeeze(), expected, rtol=1e-4, atol=1e-6)
                model.weight.grad = None
                taken = []
    assert not taken or kind == "lazy"


def test_alone_a_step_that_the_script_has_left_does_not_enter_the_next_one():
    """It leaves the first epoch in the middle of an accumulation."""
    model, plain = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loop, loader = join(model, optimizer, batches(4), accumulate=3)
    for epoch in loop.epochs(2):
        for number, batch in enumerate(loader):
            loop.backward(loss_of(model, batch))
            if loop.should_step:
                optimizer.step()
                optimizer.zero_grad()
                break
            if epoch == 0 and number == 1:
                break
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    loss_of(plain, (INPUTS[:12], LABELS[:12])).backward()
    plain_optimizer.step()
    assert torch.allclose(weights(plain), weights(model), atol=1e-6)


class Kept:
    """An average in a copy of the model that is an attribute."""

    def __init__(self, model: nn.Module) -> None:
        self.ema = copy.deepcopy(model).requires_grad_(False).eval()

    def state_dict(self) -> dict[str, Any]:
        return self.ema.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ema.load_state_dict(state)


def test_averages_grow_with_the_model_and_are_taken_up_again(advised, advice_body):
    advised(lambda body: (200, advice_body("0")))

    def train(epochs: int) -> tuple[nn.Module, AveragedModel, Shadow, Kept]:
        model, optimizer = made()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        shadow, kept = Shadow(model), Kept(model)
        another_process()
        loop, loader = join(model, optimizer, batches(4), average, shadow, kept, grow=True)
        before = kept.ema
        for _ in loop.epochs(epochs):
            for batch in loader:
                assert len(shadow.shadow) == len(list(model.parameters()))
                optimizer.zero_grad()
                loop.backward(loss_of(model, batch))
                optimizer.step()
                average.update_parameters(model)
                shadow.update(model)
                for own, new in zip(kept.ema.parameters(), model.parameters(), strict=True):
                    own.lerp_(new.detach(), 0.1)
        assert kept.ema is before
        assert not any(parameter.requires_grad for parameter in kept.ema.parameters())
        return model, average, shadow, kept

    model, average, shadow, kept = train(3)
    assert len(model.state_dict()) == 4 + 2 * 3
    assert len(average.module.state_dict()) == len(shadow.shadow) == len(model.state_dict())
    assert int(average.n_averaged) == 18
    assert not torch.allclose(weights(model), weights(average.module))
    shared = torch.stack([shadow.shadow[name] for name, _ in kept.ema.named_parameters() if name == "0.weight"])
    assert torch.allclose(shared, dict(kept.ema.named_parameters())["0.weight"])
    again = train(3)  # all epochs are done: what `join` has loaded
    for one, other in zip((model, average), again[:2], strict=True):
        assert torch.equal(weights(one), weights(other))
    assert all(torch.equal(each, again[2].shadow[name]) for name, each in shadow.shadow.items())
    assert torch.equal(weights(kept.ema), weights(again[3].ema))


def test_an_average_computes_the_same_after_it_has_grown():
    model = net()
    average = AveragedModel(model)
    state = UserState(model, torch.optim.SGD(model.parameters(), lr=0.1), [average])
    with torch.no_grad():
        average.module[0].weight.mul_(1.5)
    wanted = average(INPUTS)
    assert state.may_grow(INPUTS[:2], Insertion.EXACT, ["Deepen"]) == ""
    held = average.module
    state.adopt(state.network.grown(Action.deepen("0"), INPUTS[:2], Insertion.EXACT, 0))
    assert average.module is held
    assert len(average.module.state_dict()) == 6
    assert torch.allclose(average(INPUTS), wanted, atol=1e-6)
    assert torch.allclose(deepen(net(), "0", INPUTS[:2])(INPUTS), model(INPUTS), atol=1e-6)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.second(torch.relu(self.norm(self.first(inputs))))
        return inputs + added


@pytest.mark.parametrize("kind", ["everything", "numbers", "parameters"])
def test_an_average_in_a_dictionary_gets_new_buffers_if_it_holds_the_old_ones(kind):
    def held(model: nn.Module) -> dict[str, torch.Tensor]:
        if kind == "parameters":
            return dict(model.named_parameters())
        whole = model.state_dict().items()
        return {name: tensor for name, tensor in whole if kind == "everything" or tensor.is_floating_point()}

    model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(Residual()), nn.Linear(4, 2))
    average = Shadow(model)
    average.shadow = {name: tensor.detach().clone() for name, tensor in held(model).items()}
    state = UserState(model, torch.optim.SGD(model.parameters(), lr=0.1), [average])
    assert state.may_grow(INPUTS[:2], Insertion.UNFOLD, ["AddBlock"]) == ""
    for times in (1, 2):
        before = set(average.shadow)
        state.adopt(state.network.grown(Action(kind="AddBlock", target="1.0"), INPUTS[:2], Insertion.UNFOLD, 0))
        assert average.shadow.keys() == held(model).keys()
        assert all(average.shadow[name].shape == each.shape for name, each in held(model).items())
        assert len(average.shadow.keys() - before) >= 5 * times


@pytest.mark.parametrize("insertion", Insertion)
@pytest.mark.parametrize("part", ["all", "first"])
def test_a_frozen_copy_gets_blocks_and_stays_frozen(insertion, part):
    model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(Residual()), nn.Linear(4, 2)).eval()
    model[0].requires_grad_(False)
    kept = Kept(model)
    kept.ema.requires_grad_(part != "all")
    kept.ema.get_submodule("1").requires_grad_(False)
    state = UserState(model, torch.optim.SGD(model.parameters(), lr=0.1), [kept])
    assert state.may_grow(INPUTS[:2], insertion, ["AddBlock"]) == ""
    before = kept.ema(INPUTS)
    action = Action(kind="AddBlock", target="1.0")
    state.adopt(state.network.grown(action, INPUTS[:2], insertion, 0))
    assert kept.ema.state_dict().keys() == model.state_dict().keys()
    if insertion is not Insertion.SCALED:
        torch.testing.assert_close(kept.ema(INPUTS), before)
    trained = {name for name, parameter in kept.ema.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith("1.0.") for name in trained)
    assert {"0.weight", "2.weight"} & trained == (set() if part == "all" else {"0.weight", "2.weight"})


def test_an_average_unfolds_with_the_model():
    torch.manual_seed(0)
    model, tokens = gpt(20, context=8, width=16), torch.randint(20, (2, 8))
    average = AveragedModel(model)
    state = UserState(model, torch.optim.SGD(model.parameters(), lr=0.1), [average])
    assert state.may_grow(tokens, Insertion.UNFOLD, ["AddBlock"]) == ""
    action = Action(kind="AddBlock", target="blocks.0")
    state.adopt(state.network.grown(action, tokens, Insertion.UNFOLD, 0))
    for used in (0.2, 0.3):
        state.advance(used)
        assert torch.allclose(average(tokens), model(tokens), atol=1e-6)
        assert state.network.unfolds
    state.advance(0.4)
    assert not state.network.unfolds
    assert torch.allclose(average(tokens), model(tokens), atol=1e-6)


class Listed:
    """An average without names."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = [each.detach().clone() for each in model.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


def test_an_average_that_could_not_grow_is_refused_where_the_model_may(advised):
    advised(lambda body: (503, b""))
    model, optimizer = made()
    with pytest.raises(
        OwnLoopError, match=r"the state of Listed holds tensors that would not grow with the model; keep"
    ):
        join(model, optimizer, batches(4), Listed(model), grow=True)
    join(model, optimizer, batches(4), Listed(model))


class Lookahead(torch.optim.Optimizer):
    """As it is found in many packages."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.base, self.param_groups, self.defaults, self.state = inner, inner.param_groups, {}, inner.state


def test_optimizers_that_cannot_be_carried_are_refused_in_a_sentence():
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(model[0].parameters(), lr=0.1)
    for wrong, said in (
        (Lookahead(inner), r"Lookahead wraps another optimizer and has its own state.*the optimizer in its `.base`"),
        ([inner, other], "the parameter '0.weight' is in two optimizers; give each parameter to one"),
        ([], "the list of optimizers is empty"),
        ("SGD", "str is not a torch.optim.Optimizer; give one, or a list of several"),
        (torch.optim.LBFGS(model.parameters()), "LBFGS computes the loss of a batch several times.*another optimizer"),
        (
            torch.optim.SGD([{"params": list(model.parameters()), "clip": abs}], lr=0.1),
            "the option 'clip' of a group of SGD is a builtin_function_or_method; checkpoints hold numbers, texts,",
        ),
    ):
        with pytest.raises(OwnLoopError, match=said):
            join(model, wrong, batches(4))
    with pytest.raises(OwnLoopError, match="accumulate is 0"):
        join(model, inner, batches(4), accumulate=0)


@pytest.mark.parametrize("role", ["base", "extra"])
def test_an_optimizer_of_sparse_gradients_alone_is_refused_where_workers_train_together(
    leader, role, tmp_path, monkeypatch
):
    monkeypatch.setenv("ESPALIER_WORKER_ROLE", role)
    change_job(tmp_path, training={"elasticBatch": "keepGlobal"})
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    optimizers = [torch.optim.SparseAdam(model[0].parameters()), torch.optim.Adam(model[1].parameters())]
    with pytest.raises(OwnLoopError, match="SparseAdam takes sparse gradients only.*leave training.elasticBatch out"):
        join(model, optimizers, batches(4))
    change_job(tmp_path, training={"elasticBatch": None})
    join(model, optimizers, batches(4))


@pytest.mark.parametrize("rate", [torch.tensor(0.25), np.float32(0.25), np.float64(0.25)])
def test_rates_of_torch_and_numpy_and_infinite_options_are_resumed_from(leader, rate):
    resumed: list[dict[str, Any]] = []
    for epochs in (1, 2):
        model = net()
        group = {"params": list(model.parameters()), "clip": math.inf, "rates": {"least": rate, "most": (rate, 1)}}
        optimizer = torch.optim.Adam([group], lr=rate * (2 - epochs))
        another_process()
        loop, loader = join(model, optimizer, batches(4))
        resumed.append({key: value for key, value in optimizer.param_groups[0].items() if key != "params"})
        trained(loop, loader, model, optimizer, epochs)
    assert resumed[1] == {**resumed[0], "rates": {"least": 0.25, "most": [0.25, 1]}}
    assert resumed[1]["lr"] == 0.25
    assert type(resumed[1]["lr"]) is float


def _odd(parameter: torch.Tensor) -> dict[str, Any]:
    return {
        "factors": [torch.full((size, size), math.pi, dtype=torch.float64) for size in parameter.shape],
        "by_age": {3: (torch.arange(2), None), "mode": "fast"},
        "shape": parameter.shape,
        "before": None,
        "mode": "fast",
        "bound": -math.inf,
        "mean": torch.zeros_like(parameter),
    }


class Keeping(torch.optim.Optimizer):
    """Keeps what `kept` returns for each parameter, as optimizers with preconditioners keep lists of matrices."""

    def __init__(self, params: Any, lr: float = 0.1, kept: Callable[[torch.Tensor], dict[str, Any]] = _odd) -> None:
        super().__init__(params, {"lr": lr})
        self._kept_by = kept

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            if not self.state[parameter]:
                self.state[parameter].update(self._kept_by(parameter))
            parameter.data.add_(parameter.grad, alpha=-0.1)


@pytest.mark.parametrize("several", [False, True])
def test_lists_texts_and_dictionaries_in_the_state_of_an_optimizer_are_resumed_from(leader, several):
    def joined() -> tuple[nn.Module, list[Keeping], Any, Any]:
        model = net()
        optimizers = [Keeping(part.parameters()) for part in ([model[0], model[2]] if several else [model])]
        another_process()
        return model, optimizers, *join(model, optimizers, batches(4))

    model, optimizers, loop, loader = joined()
    for _ in loop.epochs(1):
        for batch in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
                loop.backward(loss_of(model, batch))
                optimizer.step()
    model, optimizers, *_ = joined()
    for parameter in model.parameters():
        (state,) = [optimizer.state[parameter] for optimizer in optimizers if parameter in optimizer.state]
        wanted = _odd(parameter)
        for one, other in zip(state.pop("factors"), wanted.pop("factors"), strict=True):
            assert one.dtype == torch.float64
            assert torch.equal(one, other)
        by_age = state.pop("by_age")
        assert (by_age[3][0].tolist(), by_age[3][1], by_age["mode"], len(by_age)) == ([0, 1], None, "fast", 2)
        assert torch.equal(state.pop("mean"), wanted.pop("mean"))
        del wanted["by_age"]
        assert state == wanted


def _mixed(parameter: torch.Tensor) -> dict[str, Any]:
    """A copy in 32 bits, which the parameter rounds, and moments in bytes."""
    master = parameter.detach().float() + 1e-5
    return {"master": master, "bytes": torch.arange(parameter.numel(), dtype=torch.uint8), "step": torch.tensor(257.0)}


class Casting(Keeping):
    """Has its own idea of types."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["bytes"] = state["bytes"].to(torch.int64)


@pytest.mark.parametrize("kind", [Keeping, Casting, torch.optim.NAdam])
def test_the_state_of_an_optimizer_keeps_its_types(kind, make_checkpoint):
    states = []
    for _ in range(2):
        model = net().to(torch.bfloat16)
        optimizer = kind(model.parameters(), **({} if kind is torch.optim.NAdam else {"kept": _mixed}))
        states.append(UserState(model, optimizer, []))
    first, second = states
    for _ in range(2):
        loss_of(first.model, (INPUTS.to(torch.bfloat16), LABELS)).backward()
        first.optimizer.step()
    second.load(held_copy(first, make_checkpoint).capture())
    own = kind is Casting
    for old, new in zip(first.optimizer.state.values(), second.optimizer.state.values(), strict=True):
        assert old.keys() == new.keys()
        for key in old.keys() - ({"master", "bytes"} if own else set()):
            assert old[key].dtype == new[key].dtype, key
            assert torch.equal(old[key], new[key])
        assert not own or (new["master"].dtype, new["bytes"].dtype) == (torch.bfloat16, torch.int64)
    assert own or first.digest(first.network) == second.digest(second.network)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (lambda _: {"seen": [{1}]}, "the state 'seen' that Keeping keeps for '0.weight' holds a set; checkpoints"),
        (lambda _: {"act": abs}, "keeps for '0.weight' holds a builtin_function_or_method"),
        (None, "Keeping keeps a state for 'steps', not a parameter"),
    ],
)
def test_a_state_of_an_optimizer_that_cannot_be_kept_is_refused_after_the_first_step(leader, kept, said):
    model = net()
    optimizer = Keeping(model.parameters(), kept=kept or (lambda _: {}))
    if kept is None:
        optimizer.state["steps"] = {"count": 1}
    loop, loader = join(model, optimizer, batches(4))
    with pytest.raises(OwnLoopError, match=said):
        trained(loop, loader, model, optimizer, 2)
    assert loop._run.progress.step == 1


def test_a_grown_optimizer_shares_no_list_with_the_old_one_and_widens_none():
    model, example = net(), torch.ones(2, 2)
    optimizer = Keeping(model.parameters())
    model(example).sum().backward()
    optimizer.step()
    grown = deepen(model, "0", example)
    grown_optimizer = grow_optimizer(optimizer, model, grown)
    grown_optimizer.state[grown[2].weight]["factors"][0].zero_()
    assert optimizer.state[model[2].weight]["factors"][0].all()
    (group,) = widening_groups(model, example)
    widening = plan_widening(model, group, 8, example, seed=0)
    with pytest.raises(GrowthError, match="state 'factors' .* is a list, which cannot be widened"):
        widen_optimizer(optimizer, model, widened(model, widening), widening)


def test_two_optimizers_take_a_backward_each_and_grow(advised, advice_body):
    advised(lambda body: (200, advice_body("0")))

    def train(epochs: int) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
        model = net()
        two = [torch.optim.Adam(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)]
        another_process()
        loop, loader = join(model, two, batches(4), grow=True)
        for _ in loop.epochs(epochs):
            for batch in loader:
                for optimizer in two:
                    optimizer.zero_grad()
                    loop.backward(loss_of(model, batch))
                    optimizer.step()
        return model, two

    model, two = train(2)
    assert [len(each.param_groups[0]["params"]) for each in two] == [6, 2]
    held = {id(parameter) for each in two for parameter in each.param_groups[0]["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
    assert len(two[0].state) == 6
    assert UserState(model, two, []).identity("j", 1, 1, 0).optimizer == "Adam and SGD"
    again, theirs = train(2)
    assert torch.equal(weights(model), weights(again))
    steps = [sorted(float(each["step"]) for each in optimizer.state.values()) for optimizer in (two[0], theirs[0])]
    assert steps == [[6, 6, 6, 12, 12, 12]] * 2 or steps == [[6, 6, 12, 12, 12, 12]] * 2


def test_a_gradient_scaler_may_leave_a_step_out(leader, tmp_path):
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    seen: list[int] = []
    model[0].weight.register_hook(lambda gradient: seen.append(1) or gradient / (len(seen) != 3))
    loop, loader = join(model, optimizer, batches(4), scaler)
    losses, left_out, before = [], 0, weights(model)
    for _ in loop.epochs(2):
        for batch in loader:
            optimizer.zero_grad()
            losses.append(loop.backward(scaler.scale(loss_of(model, batch))))
            scaler.step(optimizer)
            scaler.update()
            left_out += bool(torch.equal(before, weights(model)))
            before = weights(model)
    assert left_out == 1
    assert scaler.get_scale() == 2.0**9
    assert read_document(tmp_path / "report.json", Report).step == 12
    assert all(0 < loss < 5 for loss in losses)


def test_a_dropped_step_leaves_a_scaler_and_averages_as_they_were(leader):
    model, optimizer = made()
    average, scaler = AveragedModel(model), torch.amp.GradScaler("cpu")
    loop, loader = join(model, optimizer, batches(4), average, scaler)
    before, scale = weights(model), scaler.get_scale()
    for _ in loop.epochs(1):
        for batch in loader:
            loop.backward(scaler.scale(loss_of(model, batch)))
            step: UserStep = loop._step
            step.drop()
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
            break
        assert step.finish() is None
        assert (scaler.get_scale(), int(average.n_averaged)) == (scale, 0)
        assert torch.equal(weights(model), before)
        loop.stop()


def test_the_budget_is_reported_in_seconds_and_as_a_part(leader, monkeypatch):
    monkeypatch.setenv("ESPALIER_TIME_SCALE", "10")
    model, optimizer = made()
    loop, loader = join(model, optimizer, batches(4))
    told = []
    for _ in loop.epochs(3):
        for batch in loader:
            told.append((loop.fraction, loop.time_left()))
            optimizer.zero_grad()
            loop.backward(loss_of(model, batch))
            assert told[-1] == (loop.fraction, loop.time_left())
            optimizer.step()
    assert told == sorted(told, key=lambda each: each[0])
    assert all(0 <= part <= 1 and left == pytest.approx(3600 * (1 - part)) for part, left in told)
    assert told[-1][0] > 0


def test_without_a_job_no_epoch_follows_the_one_that_stops():
    model = net()
    loop, _ = join(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(13))
    seen = []
    for epoch in loop.epochs(3):
        seen.append(epoch)
        if epoch == 1:
            loop.stop()
    assert seen == [0, 1]
    assert loop.fraction == 1


def test_without_a_job_the_part_is_that_of_the_epochs():
    model, optimizer = made()
    loop, loader = join(model, optimizer, batches(13))
    told = [loop.fraction]
    trained(loop, loader, model, optimizer, 2, after=lambda: told.append(loop.fraction))
    assert told == [0, 0.25, 0.5, 0.75, 1]
    assert (loop.fraction, loop.time_left()) == (1, math.inf)
