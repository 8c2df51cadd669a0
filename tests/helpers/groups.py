"""Members of one process group of the trainer, in threads, over real connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
from torch._C._distributed_c10d import HashStore

from espalier_trainer.elastic import group as groups
from espalier_trainer.elastic.group import Group
from waiting import PATIENCE

CPU = torch.device("cpu")
Act = Callable[[Group], Any]


def together(count: int, act: Act, device: torch.device = CPU) -> list[Any]:
    """Let `count` members act in one group; returns what each returned, by rank. Raises what one of them raised."""
    store: Any = HashStore()
    store.set_timeout(timedelta(seconds=PATIENCE))
    done: list[Any] = [None] * count
    failed: list[BaseException] = []

    def member(rank: int) -> None:
        try:
            group = Group(store, 1, rank, count, device, "127.0.0.1", 1, b"key")
            try:
                done[rank] = act(group)
            finally:
                group.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=member, args=(rank,), daemon=True) for rank in range(count)]
    # All of them come, however late: a busy machine may hold a thread up for seconds.
    with patch.object(groups, "FORM_SECONDS", 30.0):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    if failed:
        raise failed[0]
    return done
