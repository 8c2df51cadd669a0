"""The distillation loss, its gradients, and the teacher that answers each example once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from espalier_trainer.distillation import Teacher, Teaching, distillation_loss

CPU = torch.device("cpu")


def batch(seed: int, rows: int = 5, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=chance, dtype=torch.float64) * 3
    taught = torch.randn(rows, classes, generator=chance, dtype=torch.float64) * 3
    return logits, taught, torch.randint(classes, (rows,), generator=chance)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.5, 20), weight=st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_the_loss_is_the_formula_written_out(seed: int, temperature: float, weight: float) -> None:
    logits, taught, labels = batch(seed)
    expected = 0.0
    for student, teacher, label in zip(logits.tolist(), taught.tolist(), labels.tolist(), strict=True):
        p = _softmax([value / temperature for value in teacher])
        q = _softmax([value / temperature for value in student])
        soft = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        hard = -math.log(_softmax(student)[label])
        expected += weight * temperature**2 * soft + (1 - weight) * hard
    found = distillation_loss(logits, taught, labels, Teaching(temperature, weight))
    assert float(found) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def _softmax(values: list[float]) -> list[float]:
    top = max(values)
    shares = [math.exp(value - top) for value in values]
    return [share / sum(shares) for share in shares]


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.5, 10), weight=st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_its_gradient_is_that_of_finite_differences(seed: int, temperature: float, weight: float) -> None:
    logits, taught, labels = batch(seed, rows=3)
    teaching = Teaching(temperature, weight)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda given: distillation_loss(given, taught, labels, teaching), (logits,))


def test_at_high_temperature_the_soft_part_matches_logits() -> None:
    # Hinton et al. 2015, section 2.1: T² dKL/ds tends to (s - t) / C for logits of mean zero.
    logits, taught, labels = batch(3)
    logits = (logits - logits.mean(1, keepdim=True)).requires_grad_()
    taught = taught - taught.mean(1, keepdim=True)
    distillation_loss(logits, taught, labels, Teaching(1e4, 1.0)).backward()
    torch.testing.assert_close(logits.grad, (logits - taught).detach() / logits.shape[1], rtol=1e-3, atol=1e-4)


def test_a_student_that_agrees_has_nothing_to_learn_from_the_teacher() -> None:
    logits, _, labels = batch(4)
    logits.requires_grad_()
    loss = distillation_loss(logits, logits.detach(), labels, Teaching(weight=1.0))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
    assert logits.grad.abs().max() < 1e-12


def test_without_the_teachers_answer_an_example_is_learnt_from_its_label() -> None:
    logits, taught, labels = batch(5)
    known = torch.tensor([True, False, True, False, False])
    teaching = Teaching(3.0, 0.7)
    mixed = distillation_loss(logits, taught, labels, teaching, known)
    parts = distillation_loss(logits[known], taught[known], labels[known], teaching)
    assert float(mixed) == pytest.approx(float(parts + cross_entropy(logits[~known], labels[~known], reduction="sum")))


@pytest.mark.parametrize(("temperature", "weight", "said"), [(0, 0.5, "temperature 0"), (1, 1.5, "weight 1.5")])
def test_impossible_teaching_is_refused(temperature: float, weight: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Teaching(temperature, weight)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


def test_each_example_is_asked_for_once_in_eval_mode() -> None:
    module = network().train()
    inputs = torch.randn(10, 6)
    teacher = Teacher(module, 10, CPU)
    for indices in (torch.tensor([0, 3, 5]), torch.tensor([3, 5, 0]), torch.tensor([5, 9])):
        logits, known = teacher.answer(indices, inputs[indices])
        assert known.all()
        module.eval()
        torch.testing.assert_close(logits, module(inputs[indices]))
        module.train()
    assert teacher.asked == 3 + 2  # the last batch had a new one in it
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("taught", [True, False])
def test_losses_of_a_student_in_reduced_precision_are_computed_in_float32(taught: bool) -> None:
    """As without a teacher: in bfloat16 a sum of a hundred losses has two digits."""
    inputs, indices = torch.randn(200, 6), torch.arange(200)
    labels = indices % 3
    logits = torch.randn(200, 3).bfloat16()
    judge = Teacher(network() if taught else None, 200, CPU).criterion(indices, inputs)
    found = judge(logits, labels)
    assert found.dtype == torch.float32
    assert torch.equal(found, judge(logits.float(), labels))


def test_a_released_teacher_goes_on_teaching_what_it_was_asked() -> None:
    inputs = torch.randn(4, 6)
    teacher = Teacher(network(), 4, CPU)
    before, _ = teacher.answer(torch.tensor([1, 2]), inputs[[1, 2]])
    teacher.release()
    after, known = teacher.answer(torch.tensor([2, 3, 1]), inputs[[2, 3, 1]])
    assert known.tolist() == [True, False, True]
    assert torch.equal(after[[2, 0]], before)

    heir = Teacher(None, 4, CPU)
    heir.load(teacher.tensors())
    again, known = heir.answer(torch.tensor([2, 3, 1]), inputs[[2, 3, 1]])
    assert known.tolist() == [True, False, True]
    assert torch.equal(again, after)


def test_of_a_set_too_large_nothing_is_kept() -> None:
    inputs = torch.randn(4, 6)
    teacher = Teacher(network(), 4, CPU, room=4 * 3 * 4 - 1)
    for _ in range(2):
        _, known = teacher.answer(torch.arange(4), inputs)
        assert known.all()
    assert teacher.asked == 8
    assert not teacher.keeps
    assert teacher.tensors() == {}
    teacher.release()
    logits, known = teacher.answer(torch.arange(4), inputs)
    assert logits is None
    assert not known.any()
    student, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert teacher.criterion(torch.arange(4), inputs)(student, labels) == cross_entropy(
        student, labels, reduction="sum"
    )


def test_the_students_gradient_does_not_reach_the_teacher() -> None:
    module, student = network(), nn.Linear(6, 3)
    inputs, labels = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    loss = Teacher(module, 4, CPU).criterion(torch.arange(4), inputs)(student(inputs), labels)
    loss.backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
