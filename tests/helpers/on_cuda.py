"""Tests that need a GPU: their mark, the device, and sums that do not depend on their order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

DEVICE = torch.device("cuda")
NEEDS_CUDA = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Compute in full single precision: with TF32 sums in another order differ in the third digit."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def on_the_device(module: nn.Module) -> bool:
    """Return whether all parameters and buffers are on the GPU."""
    return {each.device.type for each in [*module.parameters(), *module.buffers()]} == {DEVICE.type}
