"""A model that grows in place: what a script holds of it, of its optimizer and of its schedulers goes on with it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import timm.optim
import timm.scheduler
import torch
import transformers
from residual_nets import Unit
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR

from espalier_trainer.distillation import shrink_optimizer
from espalier_trainer.net2net import (
    DeepenBlock,
    GrowthError,
    Insertion,
    add_block,
    deepen,
    grow_in_place,
    grow_optimizer,
    plan_widening,
    widen_optimizer,
    widened,
)

INPUTS = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))


class Helper:
    """Any object of a user's, with parts of the model in it."""

    def __init__(self, head: nn.Module) -> None:
        self.head, self.draws = head, random.Random(3)

    def look(self, *_: Any) -> None:
        """Serve as a hook."""


class Net(nn.Module):
    """Holds some of its parts twice, as models of users do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.blocks = nn.ModuleList(Unit() for _ in range(2))
        self.head = nn.Linear(8, 3)
        self.depth = 2
        self.helper = Helper(self.head)
        self.parts = [self.stem[0], (self.head, self.blocks), {"head": self.head, self.head: {1, 2}}]
        self.draws = torch.Generator()
        self.listed = list(self.parameters())
        self.head.register_forward_hook(self.helper.look)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def objects(model: nn.Module) -> dict[str, int]:
    found: dict[str, Any] = dict(model.named_modules()) | dict(model.named_parameters()) | dict(model.named_buffers())
    found |= {f"{path} {name}": value for path, module in model.named_modules() for name, value in vars(module).items()}
    changing = (int, float, bool, type(None))
    return {name: id(each) for name, each in found.items() if not isinstance(each, changing)}


def train(model: Callable[[Tensor], Tensor], optimizer: Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(INPUTS).square().mean().backward()
        optimizer.step()


def widen_stem(model: nn.Module) -> tuple[nn.Module, Any]:
    widening = plan_widening(model, "blocks.0.up", 32, INPUTS, seed=1)
    return widened(model, widening), widening


WAYS: dict[str, Callable[[nn.Module], tuple[nn.Module, Any]]] = {
    "Deepen": lambda model: (deepen(model, "stem.0", INPUTS), None),
    "Deepen twice": lambda model: (deepen(deepen(model, "stem.0", INPUTS), "stem.0", INPUTS), None),
    "AddBlock": lambda model: (add_block(model, "blocks.0", INPUTS), None),
    "AddBlock, scaled": lambda model: (add_block(model, "blocks.0", INPUTS, Insertion.SCALED), None),
    "AddBlock, unfolding": lambda model: (add_block(model, "blocks.0", INPUTS, Insertion.UNFOLD), None),
    "Widen": widen_stem,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Adam, lambda p: SGD(p, lr=0.1, momentum=0.9)], ids=["Adam", "SGD"])
def test_what_a_script_holds_stays_the_models_and_trains_as_the_copy_does(way: str, kind: Any) -> None:
    model = Net()
    optimizer = kind(model.parameters())
    train(model, optimizer)
    twin, theirs = copy.deepcopy((model, optimizer))
    before, groups, group, state = objects(model), optimizer.param_groups, optimizer.param_groups[0], optimizer.state
    kept = {name: state[parameter] for name, parameter in model.named_parameters()}
    calls: list[object] = []
    handle = model.stem.register_forward_hook(lambda *given: calls.append(given))
    grown, widening = WAYS[way](twin)
    theirs = grow_optimizer(theirs, twin, grown) if widening is None else widen_optimizer(theirs, twin, grown, widening)
    copied, widening = WAYS[way](model)
    grow_in_place(model, copied, optimizer, widening)
    assert before.items() <= objects(model).items()
    assert (optimizer.param_groups, optimizer.state) == (groups, state)
    assert optimizer.param_groups is groups
    assert optimizer.param_groups[0] is group
    assert optimizer.state is state
    assert {id(parameter) for parameter in group["params"]} == {id(parameter) for parameter in model.parameters()}
    shapes = {name: parameter.shape for name, parameter in twin.named_parameters()}
    parameters = dict(model.named_parameters())
    assert all(state[parameters[name]] is held for name, held in kept.items() if parameters[name].shape == shapes[name])
    assert model.helper.head is model.head is model.parts[0:2][1][0] is model.parts[2]["head"]
    assert model.depth == grown.depth
    train(grown, theirs)
    calls.clear()
    train(model, optimizer)
    assert len(calls) == 3
    handle.remove()
    model.eval()(INPUTS)
    assert len(calls) == 3
    for name, tensor in grown.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    for training in (False, True):
        assert torch.equal(model.train(training)(INPUTS), grown.train(training)(INPUTS))
    grow_in_place(model, WAYS["AddBlock" if "AddBlock" in way else "Deepen"](model)[0], optimizer)
    train(model, optimizer)


def test_a_growth_that_is_refused_leaves_everything_as_it_was() -> None:
    model = Net()
    optimizer = Adam(model.parameters())
    other = Adam(Net().parameters())
    before = objects(model)
    with pytest.raises(GrowthError, match="holds no parameter of the old model"):
        grow_in_place(model, deepen(model, "stem.0", INPUTS), [optimizer, other])
    assert objects(model) == before
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


def test_parameters_that_became_larger_stay_what_hooks_and_graphs_hold() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = Adam(model.parameters())
    weight, seen = model[0].weight, []
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.shape))
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]  # as torch's DDP and FSDP hold it
    train(model, optimizer)
    widening = plan_widening(model, "0", 12, INPUTS, seed=0)
    grow_in_place(model, widened(model, widening), optimizer, widening)
    train(model, optimizer)
    assert weight is model[0].weight
    assert seen == [(6, 4)] * 3 + [(12, 4)] * 3
    assert node is not None


def test_tied_weights_stay_tied_and_pickle() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[3].weight = model[2].weight
    tied = model[3].weight
    grow_in_place(model, deepen(model, "0", INPUTS))
    assert model[3].weight is tied is model[2].weight
    again = copy.deepcopy(model)
    assert torch.equal(again(INPUTS), model(INPUTS))


# ---- what is still held, and what is not computed


@pytest.mark.parametrize("kind", ["blocks", "marked"])
def test_a_script_that_leaves_the_new_layers_out_is_told_so(kind: str) -> None:
    model: nn.Module = (
        nn.Sequential(nn.Linear(4, 8), nn.Sequential(Unit(), Unit()), nn.Linear(8, 3))
        if kind == "blocks"
        else nn.Sequential(DeepenBlock(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 3))
    )
    layers = [module for part in model for module in (part if isinstance(part, nn.Sequential) else [part])]
    optimizer = SGD(model.parameters(), lr=0.01)

    def by_hand(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    train(by_hand, optimizer)
    grown = add_block(model, "1.0", INPUTS) if kind == "blocks" else deepen(model, "0", INPUTS)
    grow_in_place(model, grown, optimizer)
    said = "'1.1.*' gets gradients, and '1.2'" if kind == "blocks" else "'0.0.weight' gets gradients, and '0.grown'"
    with pytest.raises(GrowthError, match=f"{said}, which growth has added after it, does not.*call the model"):
        train(by_hand, optimizer, 120)


def test_a_new_layer_that_is_left_out_at_times_is_no_error() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Unit(), Unit()), nn.Linear(8, 3))
    optimizer = SGD(model.parameters(), lr=0.01)
    layers = list(model[1])
    grow_in_place(model, add_block(model, "1.0", INPUTS), optimizer)

    calls = iter(range(1, 250))

    def dropping(x: Tensor) -> Tensor:
        x = model[0](x)
        for layer in layers if next(calls) % 7 else model[1]:
            x = layer(x)
        return model[2](x)

    train(dropping, optimizer, 240)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_a_module_that_is_no_longer_of_the_model_is_refused_where_it_is_used() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    small = copy.deepcopy(model)
    grow_in_place(model, deepen(model, "0", INPUTS))
    (linear, weight) = (model.get_submodule("1.grown.0.linear"), model.get_parameter("1.grown.0.linear.weight"))
    grow_in_place(model, small)  # as a trial that is given up
    with pytest.raises(GrowthError, match=r"still uses '1\.grown\.0\.linear' as it was before"):
        linear(torch.zeros(1, 8))
    with pytest.raises(GrowthError, match=r"still uses '1\.grown\.0\.linear\.weight'"):
        weight.square().sum().backward()
    assert type(model[1]) is nn.ReLU
    assert list(model.state_dict()) == list(small.state_dict())


# ---- schedulers


def _torch(name: str, **options: Any) -> Callable[[Optimizer], Any]:
    return lambda optimizer: getattr(lr_scheduler, name)(optimizer, **options)


def _sequential(optimizer: Optimizer) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, 9)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


def _chained(optimizer: Optimizer) -> Any:
    return lr_scheduler.ChainedScheduler([_sequential(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)])


def _transformers(name: str, **options: Any) -> Callable[[Optimizer], Any]:
    return lambda optimizer: transformers.get_scheduler(
        name, optimizer, num_warmup_steps=3, num_training_steps=12, scheduler_specific_kwargs=options
    )


def _timm(name: str, **options: Any) -> Callable[[Optimizer], Any]:
    return lambda optimizer: getattr(timm.scheduler, name)(optimizer, warmup_t=3, warmup_lr_init=0.01, **options)


def _others(name: str, **options: Any) -> Callable[[Optimizer], Any]:
    return lambda optimizer: pytorch_optimizer.load_lr_scheduler(name)(optimizer, **options)


def _proportion(optimizer: Optimizer) -> Any:
    inner = pytorch_optimizer.load_lr_scheduler("cosine")(optimizer, t_max=12, max_lr=0.1)
    outer = pytorch_optimizer.load_lr_scheduler("proportion")(inner, max_lr=0.1)
    outer.optimizer_scheduler = inner
    return outer


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": _torch("LambdaLR", lr_lambda=[lambda step: 0.9**step, lambda step: 1 / (1 + step)]),
    "MultiplicativeLR": _torch("MultiplicativeLR", lr_lambda=lambda step: 0.9),
    "StepLR": _torch("StepLR", step_size=3),
    "MultiStepLR": _torch("MultiStepLR", milestones=[3, 7]),
    "ConstantLR": _torch("ConstantLR", total_iters=7),
    "LinearLR": _torch("LinearLR", total_iters=7),
    "ExponentialLR": _torch("ExponentialLR", gamma=0.8),
    "PolynomialLR": _torch("PolynomialLR", total_iters=9),
    "CosineAnnealingLR": _torch("CosineAnnealingLR", T_max=9),
    "CosineAnnealingWarmRestarts": _torch("CosineAnnealingWarmRestarts", T_0=4, T_mult=2),
    "CyclicLR": _torch("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=3, cycle_momentum=False),
    "CyclicLR, momentum": _torch("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=3, mode="exp_range", gamma=0.9),
    "OneCycleLR": _torch("OneCycleLR", max_lr=[0.1, 0.2], total_steps=20),
    "ReduceLROnPlateau": _torch("ReduceLROnPlateau", patience=1, min_lr=[0.001, 0.01]),
    "SequentialLR": _sequential,
    "ChainedScheduler": _chained,
    "SWALR": lambda optimizer: SWALR(optimizer, swa_lr=0.01, anneal_epochs=7),
    **{
        name: _transformers(name)
        for name in ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant_with_warmup", "inverse_sqrt")
    },
    "cosine_with_min_lr": _transformers("cosine_with_min_lr", min_lr=0.01),
    "warmup_stable_decay": _transformers("warmup_stable_decay", num_decay_steps=4),
    "reduce_lr_on_plateau": _transformers("reduce_lr_on_plateau", patience=1),
    "greedy": _transformers("greedy", patience=1),
    "timm cosine": _timm("CosineLRScheduler", t_initial=12, noise_range_t=2),
    "timm multistep": _timm("MultiStepLRScheduler", decay_t=[5, 8], decay_rate=0.5),
    "timm plateau": _timm("PlateauLRScheduler", patience_t=1),
    "timm poly": _timm("PolyLRScheduler", t_initial=12),
    "timm step": _timm("StepLRScheduler", decay_t=3, decay_rate=0.5, t_in_epochs=False),
    "timm tanh": _timm("TanhLRScheduler", t_initial=12),
    "timm wsd": _timm("WSDLRScheduler", t_initial=12, decay_t=4),
    "linear of pytorch_optimizer": _others("linear", t_max=12, max_lr=0.1, warmup_steps=3),
    "cosine of pytorch_optimizer": _others("cosine", t_max=12, max_lr=0.1, warmup_steps=3),
    "poly": _others("poly", t_max=12, max_lr=0.1),
    "cosine_annealing_with_warmup": _others("cosine_annealing_with_warmup", first_cycle_steps=6, warmup_steps=2),
    "chebyshev": _others("chebyshev", num_epochs=32),
    "rex": _others("rex", total_steps=12),
    "warmup_stable_decay of pytorch_optimizer": _others(
        "warmup_stable_decay", num_warmup_steps=3, num_stable_steps=4, num_decay_steps=5
    ),
    "proportion": _proportion,
}


def _advance(scheduler: Any, step: int) -> None:
    if isinstance(scheduler, timm.scheduler.scheduler.Scheduler):
        scheduler.step_update(step)
        scheduler.step(step, metric=1.0)
    elif isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) or type(scheduler).__name__ == "GreedyLR":
        scheduler.step(1.0)
    else:
        if inner := getattr(scheduler, "optimizer_scheduler", None):
            inner.step()
        scheduler.step()


def _rates(make: Callable[[Optimizer], Any], way: str, at: int) -> list[Any]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}]
    optimizer: Optimizer = SGD(groups, lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    found: list[Any] = []
    for step in range(12):
        if step == at and way != "not at all":
            grown = deepen(model, "0", INPUTS)
            if way == "in place":
                grow_in_place(model, grown, optimizer)
            else:
                model, optimizer = grown, grow_optimizer(optimizer, model, grown, schedulers=[scheduler])
            assert len(optimizer.param_groups[0]["params"]) == 4
        train(model, optimizer, 1)
        _advance(scheduler, step + 1)
        found.append([(group["lr"], group["momentum"]) for group in optimizer.param_groups])
        found.append(getattr(scheduler, "last_lr", None))
    return found


@pytest.mark.filterwarnings("ignore:PlateauLRScheduler is deprecated", "ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_rates_after_growth_are_those_without(name: str) -> None:
    wanted = _rates(SCHEDULERS[name], "not at all", 0)
    for at in (0, 5):
        for way in ("in place", "handed over"):
            assert _rates(SCHEDULERS[name], way, at) == wanted, (way, at)


def test_a_scheduler_of_another_optimizer_is_refused_and_none_is_moved() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    one, other = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)
    schedulers = [_sequential(one), _sequential(other)]
    grown = deepen(model, "0", INPUTS)
    with pytest.raises(GrowthError, match="SequentialLR is not one of this SGD"):
        grow_optimizer(one, model, grown, schedulers=schedulers)
    assert [scheduler.optimizer for scheduler in schedulers] == [one, other]


def test_a_smaller_model_and_a_wider_one_keep_schedulers_too() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer: Optimizer = Adam(model.parameters())
    scheduler = _chained(optimizer)
    widening = plan_widening(model, "0", 12, INPUTS, seed=0)
    wider = widened(model, widening)
    optimizer = widen_optimizer(optimizer, model, wider, widening, schedulers=[scheduler])
    deeper = deepen(wider, "0", INPUTS)
    optimizer = grow_optimizer(optimizer, wider, deeper, schedulers=[scheduler])
    optimizer = shrink_optimizer(optimizer, deeper, wider, schedulers=[scheduler])
    inner = [one for each in scheduler._schedulers for one in (each, *getattr(each, "_schedulers", []))]
    assert {id(each.optimizer) for each in inner} == {id(optimizer)} == {id(scheduler.optimizer)}


# ---- what optimizers keep elsewhere


class Listing(AdamW):
    """Keeps a list of its parameters, and figures of each, in attributes of its own."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.all = [parameter for group in self.param_groups for parameter in group["params"]]
        self.figures = dict.fromkeys(self.all, 0)

    def step(self, closure: Any = None) -> Any:
        for parameter in self.all:
            self.figures[parameter] += 1
        return super().step(closure)


OPTIMIZERS: dict[str, tuple[Callable[[Any], Optimizer], Callable[[Any], Any]]] = {
    "StableSPAM": (
        lambda p: pytorch_optimizer.load_optimizer("stablespam")(p, lr=0.01),
        lambda optimizer: optimizer.total_step,
    ),
    "SPAM": (
        lambda p: pytorch_optimizer.load_optimizer("spam")(p, lr=0.01),
        lambda optimizer: (optimizer.warmup.cosine_stepper.last_epoch, optimizer.state["total_step"]),
    ),
    "a list of one's own": (Listing, lambda optimizer: [len(optimizer.all), sorted(optimizer.figures.values())[-4:]]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_keeps_outside_its_state_goes_on(name: str) -> None:
    make, look = OPTIMIZERS[name]
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = make(model.parameters())
    calls: list[object] = []
    handle = optimizer.register_step_post_hook(lambda one, *_: calls.append(one))
    train(model, optimizer, 4)
    wanted = look(optimizer)
    grown = deepen(model, "0", INPUTS)
    follower = grow_optimizer(optimizer, model, grown)
    if name.startswith("a list"):
        wanted = [6, wanted[1]]
    assert look(follower) == wanted
    grow_in_place(model, deepen(model, "0", INPUTS), optimizer)
    assert look(optimizer) == wanted
    train(grown, follower, 1)
    train(model, optimizer, 1)
    assert look(follower) == look(optimizer)
    assert list(dict.fromkeys(calls)) == [optimizer, follower]
    done = len(calls)
    handle.remove()
    train(grown, follower, 1)
    train(model, optimizer, 1)
    assert len(calls) == done


@pytest.mark.filterwarnings("ignore:It is highly recommended to have 'opt_einsum'")
def test_the_random_generator_of_an_optimizer_goes_on() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    # It is not stepped, as it compiles its first step for a minute.
    optimizer: Any = timm.optim.create_optimizer_v2(list(model.parameters()), opt="kron", lr=0.01)
    optimizer.rng.random()
    follower: Any = grow_optimizer(optimizer, model, deepen(model, "0", INPUTS))
    assert follower.rng is not optimizer.rng
    assert follower.rng.random() == optimizer.rng.random()
