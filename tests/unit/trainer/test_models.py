"""The starting models, and what is said about those that cannot be used."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from espalier_core.types.job import ModelSpec
from espalier_trainer.errors import ModelError
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.description import describe

SHAPES = {"digits": (2, 1, 8, 8), "cifar8": (2, 3, 8, 8), "cnn1": (2, 3, 32, 32), "cnn2": (2, 3, 32, 32)}


@pytest.mark.parametrize("name", SHAPES)
def test_zoo_grows_at_its_three_blocks(name):
    example = torch.zeros(SHAPES[name])
    architecture = describe(build_model(ModelSpec(name=name), 10, example), example)
    assert [point.id for point in architecture.growth_points] == ["block0", "block1", "block2"]


def test_digits_net_is_that_of_the_reference_workload():
    model = build_model(ModelSpec(name="digits"), 10, torch.zeros(2, 1, 8, 8))
    kinds = [module for module in model.modules() if not list(module.children())]
    assert [str(module) for module in kinds] == [
        "Conv2d(1, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
        str(nn.BatchNorm2d(6)),
        "ReLU()",
        "Conv2d(6, 8, kernel_size=(1, 1), stride=(1, 1))",
        str(nn.BatchNorm2d(8)),
        "ReLU()",
        "AdaptiveAvgPool2d(output_size=1)",
        "Linear(in_features=8, out_features=8, bias=True)",
        "ReLU()",
        "Linear(in_features=8, out_features=10, bias=True)",
    ]


@pytest.mark.parametrize(("name", "parameters"), [("cnn1", 10_602), ("cnn2", 20_778)])
def test_papers_nets_have_the_papers_layers(name, parameters):
    example = torch.zeros(SHAPES[name])
    model = build_model(ModelSpec(name=name), 10, example)
    # Counted by hand from figure 6: convolutions with bias, two numbers a batch-normed channel, the linear layer.
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert (model(torch.randn(4, 3, 32, 32)) >= 0).all()  # the last block ends in a ReLU


def test_torchvision_model_gets_the_data_sets_classes():
    model = build_model(ModelSpec(name="torchvision:shufflenet_v2_x0_5"), 7, torch.zeros(2, 3, 32, 32))
    assert model.fc.out_features == 7
    assert model.training


MODULE = """
import torch
class Bare(torch.nn.Module):
    def forward(self, images): return images.flatten(1).sum(1)
def linear(width=10): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width))
class Wordy(torch.nn.Linear):
    def forward(self, x):
        raise RuntimeError("Error(s) in forward:\\n\\tsize of x\\n\\tsize of y")

def wordy():
    return Wordy(2, 10)

def bare(): return Bare()
def nothing(): return None
class Logits(torch.nn.Module):
    def forward(self, images): return images.flatten(1)[:, :10]
def weightless(): return Logits()
def frozen(): return linear().requires_grad_(False)
class Counting(torch.nn.Linear):
    def forward(self, images): return super().forward(images.flatten(1))
    def get_extra_state(self): return {"seen": 0}
    def set_extra_state(self, state): pass
def counting(): return torch.nn.Sequential(Counting(64, 10))
"""


@pytest.fixture
def _user_module(users_module):
    users_module("user_models", MODULE)


@pytest.mark.usefixtures("_user_module")
def test_users_function_gives_the_model():
    model = build_model(ModelSpec(entrypoint="user_models:linear", options={"width": 12}), 10, torch.zeros(2, 1, 8, 8))
    assert model[1].out_features == 12


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "torchvision:resnet81"}, "did you mean resnet18"),
        ({"name": "torchvision:resnet18", "options": {"depth": 3}}, "training.model.options"),
        ({"name": "digits", "options": {"width": 3}}, "unexpected keyword argument 'width'"),
        ({"name": "cifar8"}, "does not take this data set's inputs of shape (2, 1, 8, 8)"),
        ({"name": "digits", "options": {"classes": 3}}, "has 3 outputs, but the data set has 10 classes"),
        ({"entrypoint": "no_such_package:net"}, "cannot import 'no_such_package'"),
    ],
)
def test_unusable_models_say_what_is_allowed(spec, said):
    with pytest.raises(ModelError, match=re.escape(said)):
        build_model(ModelSpec.model_validate(spec), 10, torch.zeros(2, 1, 8, 8))


@pytest.mark.usefixtures("_user_module")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "returned NoneType, not a torch.nn.Module"),
        ("bare", "must return logits [N, classes]"),
        ("wordy", "Error(s) in forward: size of x size of y; its forward must take"),
        ("missing", "has no function 'missing'; it has Bare, Counting, Logits, Wordy, bare"),
        ("weightless", "weightless: the model has no parameters, so there is nothing to"),
        ("frozen", "frozen: all 2 parameters of the model are frozen (requires_grad is False)"),
        ("counting", "'0._extra_state' in its state_dict() is a dict, and checkpoints hold tensors: return one from"),
    ],
)
def test_unusable_functions_say_what_they_must_return(function, said):
    with pytest.raises(ModelError, match=re.escape(said)):
        build_model(ModelSpec(entrypoint=f"user_models:{function}"), 10, torch.zeros(2, 1, 8, 8))


def test_entrypoint_that_is_not_python_says_so(users_module, digits):
    users_module("half_written_net", "def net(:")
    with pytest.raises(ModelError, match="'half_written_net' is not valid Python"):
        build_model(ModelSpec(entrypoint="half_written_net:net"), 10, digits.example_input())


@pytest.mark.parametrize("code", ["", "0", "1", "'usage: me FILE'"])
def test_a_script_without_a_guard_is_no_entrypoint(users_module, digits, code):
    """Its exit code would be taken for the job's: 0 would mean that it is complete."""
    users_module("unguarded_net", f"import sys\ndef net(): pass\nsys.exit({code})\n")
    with pytest.raises(ModelError, match="'unguarded_net' ends the program when it is imported"):
        build_model(ModelSpec(entrypoint="unguarded_net:net"), 10, digits.example_input())


def test_a_request_to_stop_while_an_entrypoint_is_imported_is_heard(users_module, digits):
    users_module("slow_net", "def net(): pass\nraise SystemExit(143)  # as the handler of SIGTERM does\n")
    with pytest.raises(SystemExit):
        build_model(ModelSpec(entrypoint="slow_net:net"), 10, digits.example_input())
