"""The network is the one of Lamelas, section 5."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from espalier_agent.policies.lstm_encoder import LstmModelEncoder, encode_time
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork, masked_log_probabilities


def seconds(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_equation_6_by_hand() -> None:
    # t_r/t_b = 1/12: v_i = 5·sin(i·30°), i = 1..8.
    expected = [2.5, 5 * math.sqrt(3) / 2, 5, 5 * math.sqrt(3) / 2, 2.5, 0, -2.5, -5 * math.sqrt(3) / 2]
    found = encode_time(seconds(10.0), seconds(120.0))
    torch.testing.assert_close(found, torch.tensor([expected]), atol=1e-6, rtol=0)


def test_time_left_enters_as_a_share_of_the_budget_and_at_most_as_the_whole() -> None:
    torch.testing.assert_close(encode_time(seconds(33.0), seconds(400.0)), encode_time(seconds(3.3), seconds(40.0)))
    beginning_middle_end = encode_time(seconds(0.0, 200.0, 400.0), seconds(400.0, 400.0, 400.0))
    torch.testing.assert_close(beginning_middle_end, torch.zeros(3, 8), atol=1e-5, rtol=0)
    assert torch.equal(encode_time(seconds(500.0), seconds(400.0)), encode_time(seconds(400.0), seconds(400.0)))


def test_trainable_shapes_are_the_papers() -> None:
    network = PolicyNetwork.of(NetworkConfig(growth_points=3))
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    lstm = {"weight_ih_l0": "input", "weight_hh_l0": "hidden", "bias_ih_l0": "", "bias_hh_l0": ""}
    for module, inputs, hidden in (("layers_forward", 16, 50), ("layers_backward", 16, 50), ("model", 100, 16)):
        for name, kind in lstm.items():
            rows = (4 * hidden,)
            expected = rows + {"input": (inputs,), "hidden": (hidden,), "": ()}[kind]
            assert shapes.pop(f"encoder.{module}.{name}") == expected
    assert shapes == {
        "decider.0.weight": (128, 24),
        "decider.0.bias": (128,),
        "decider.2.weight": (128, 128),
        "decider.2.bias": (128,),
        "decider.4.weight": (4, 128),
        "decider.4.bias": (4,),
    }


def test_layer_encoder_is_a_bidirectional_lstm_over_the_true_lengths() -> None:
    torch.manual_seed(0)
    encoder = LstmModelEncoder()
    reference = nn.LSTM(16, 50, batch_first=True, bidirectional=True)
    weights = dict(encoder.layers_forward.state_dict())
    weights |= {f"{name}_reverse": value for name, value in encoder.layers_backward.state_dict().items()}
    reference.load_state_dict(weights)
    lengths = torch.tensor([7, 1, 4])
    embedded = torch.randn(3, 7, 16)
    layers = encoder.encode_layers(embedded, lengths)
    models = encoder({"embedded": embedded, "lengths": lengths})
    for row, length in enumerate(lengths.tolist()):
        alone, _ = reference(embedded[row : row + 1, :length])
        torch.testing.assert_close(layers[row, :length], alone[0])
        _, (hidden, _) = encoder.model(alone)
        torch.testing.assert_close(models[row], hidden[0, 0])


def test_a_model_is_encoded_alike_alone_and_with_longer_ones() -> None:
    encoder = LstmModelEncoder()
    short, long = torch.randn(3, 16), torch.randn(40, 16)
    both = {"embedded": pad_sequence([short, long], batch_first=True), "lengths": torch.tensor([3, 40])}
    alone = {"embedded": short[None], "lengths": torch.tensor([3])}
    torch.testing.assert_close(encoder(both)[0], encoder(alone)[0])


def test_seeded_network_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one = PolicyNetwork.seeded(NetworkConfig(growth_points=2), 1)
    assert torch.equal(torch.rand(1), expected)
    two = PolicyNetwork.seeded(NetworkConfig(growth_points=2), 1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_masked_probabilities_are_a_softmax_over_the_legal_alone(temperature: float) -> None:
    logits = torch.tensor([[3.0, 100.0, -1.0, 0.5]])
    legal = torch.tensor([[True, False, True, True]])
    found = masked_log_probabilities(logits, legal, temperature).exp()
    weights = [math.exp(value / temperature) for value in (3.0, -1.0, 0.5)]
    expected = [weights[0], 0.0, weights[1], weights[2]]
    torch.testing.assert_close(found, torch.tensor([expected]) / sum(weights))


def test_gradients_stay_finite_where_actions_are_masked() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    masked_log_probabilities(logits, torch.tensor([[True, False, True]]))[0, 0].backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, 0.0, -0.5]]))
