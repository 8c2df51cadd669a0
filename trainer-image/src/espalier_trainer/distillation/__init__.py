"""Distillation of the grown model into a smaller one, for use after GPUs are taken back (Lamelas, section 7.1).

    fill(smaller, larger)                                    # weight distillation: the surviving weights
    optimizer = shrink_optimizer(optimizer, larger, smaller) # and the optimizer's state
    recalibrate(smaller, batches)                            # batch norms of the layers that are gone
    fold(smaller, larger, readers(of_larger, of_smaller), batches)
    teacher = Teacher(larger, len(train), device)            # knowledge distillation
    loss = teacher.criterion(indices, inputs)(smaller(inputs), labels) / len(labels)

Whether to do so is a pure decision (`decision`); `shrinking` executes it in a run, and `trial` holds its state.
"""

from espalier_trainer.distillation.decision import ShrinkFacts, ShrinkRule, ShrinkVerdict, decide
from espalier_trainer.distillation.filling import ShrinkError, fill, fold, readers, recalibrate, shrink_optimizer
from espalier_trainer.distillation.teacher import Teacher, Teaching, distillation_loss
from espalier_trainer.training.hooks import Criterion

__all__ = [
    "Criterion",
    "ShrinkError",
    "ShrinkFacts",
    "ShrinkRule",
    "ShrinkVerdict",
    "Teacher",
    "Teaching",
    "decide",
    "distillation_loss",
    "fill",
    "fold",
    "readers",
    "recalibrate",
    "shrink_optimizer",
]
