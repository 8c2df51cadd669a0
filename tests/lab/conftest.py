"""What tests of the laboratory share: one thread, and outcome tables."""

from __future__ import annotations

import pytest
import torch

from outcome_tables import chain, make_table, tables  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
