"""Layers that a model computes by functions: refused by the line of the call, with what would help."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from espalier_trainer.growth.growth_report import survey
from espalier_trainer.net2net import refused_blocks, refused_deepenings
from espalier_trainer.net2net.modules import remembering
from espalier_trainer.net2net.trace import tracing


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(4, 4, 3, padding=1)
        self.k = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("mask", torch.ones(4, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = torch.relu(functional.conv2d(inputs, self.c.weight, self.c.bias, padding=1))  # line of c
        return torch.relu(inputs.permute(0, 2, 3, 1) @ (self.k * self.mask)).permute(0, 3, 1, 2)  # line of k


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.zeros(4))
        self.body = Inner()
        self.attention = nn.Linear(4, 4)
        self.v = nn.Parameter(torch.randn(5, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(functional.conv2d(inputs, self.w, self.b, padding=1))  # line of w
        hidden = self.body(hidden).flatten(2).transpose(1, 2)
        hidden = torch.softmax(hidden @ self.attention(hidden).transpose(1, 2), -1) @ hidden
        return functional.linear(hidden.mean(1), self.v)  # line of v


class OfTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) for _ in range(2))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:  # line of OfTorch
        for layer in self.layers:
            inputs = layer(inputs)
        return torch.stack([expert(inputs) for expert in self.experts]).sum(0)


def test_what_torch_computes_is_reported_by_the_forward_that_calls_it() -> None:
    """A user cannot change the files of torch."""
    model, example = OfTorch(), torch.randn(2, 3, 4)
    refused = [*refused_deepenings(model, example).values(), *refused_blocks(model, example)]
    assert {"layers.0.self_attn.out_proj", "layers.1.linear2", "layers.0", "experts.0"} <= {
        one.layer for one in refused
    }
    assert {(one.file, one.line) for one in refused} == {(__file__, line("OfTorch"))}


def line(mark: str) -> int:
    return next(
        number
        for number, text in enumerate(inspect.getsource(inspect.getmodule(line)).splitlines(), 1)
        if text.endswith(f"# line of {mark}")
    )


@pytest.mark.parametrize(
    ("path", "mark", "reason", "remedy"),
    [
        ("w", "w", "the function conv2d is called with 'w', a parameter of the model", "in a torch.nn.Conv2d"),
        ("v", "v", "the function linear is called with 'v'", "in a torch.nn.Linear"),
        ("body.k", "k", "called with 'body.k', a parameter of 'body' (Inner)", "in a torch.nn.Linear"),
        ("body.c", "c", "calls the function conv2d with the weight of 'body.c'", "y = self.c(x)"),
    ],
)
def test_a_function_that_is_called_with_a_weight_is_reported_by_its_line(
    path: str, mark: str, reason: str, remedy: str
) -> None:
    refused = refused_deepenings(Functional(), torch.randn(2, 3, 4, 4))
    assert set(refused) == {"w", "v", "body.k", "body.c", "attention"}  # products of activations are no layers
    assert reason in refused[path].reason
    assert remedy in refused[path].remedy
    assert (refused[path].file, refused[path].line) == (__file__, line(mark))


def test_a_survey_traces_the_model_once_in_each_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    asked: list[tuple[bool, bool]] = []
    traced = tracing._traced

    def counted(module: nn.Module, *given: Any, training: bool) -> Any:
        asked.append((module is model, training))
        return traced(module, *given, training=training)

    monkeypatch.setattr(tracing, "_traced", counted)
    example = torch.randn(2, 4)
    found = survey(model, example, pairs=0)
    assert sorted(training for own, training in asked if own) == [False, True]
    assert len(found.points) == 2

    with remembering(model, example):
        pass
    model.append(nn.ReLU())  # nothing is remembered after it
    assert len(survey(model, example, pairs=0).points) == 3
