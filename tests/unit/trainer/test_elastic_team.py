"""The leader's side, beside a member in a thread: what is told, and what is told again where a generation breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.elastic import GroupBrokenError, Team
from espalier_trainer.elastic import team as teams
from espalier_trainer.elastic.delivery import Place
from espalier_trainer.elastic.member import Member
from espalier_trainer.elastic.membership import NEWCOMER, WorkerIdentity
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.training.network import Network
from waiting import PATIENCE, until

CPU = torch.device("cpu")


def network() -> Network:
    module = nn.Linear(1, 1)
    return Network(module, torch.optim.SGD(module.parameters(), lr=0.1), None)


def same(network: Network) -> int:
    return 7


class Holder:
    """Keeps all states that it was given."""

    def __init__(self) -> None:
        self.network: Network | None = None
        self.taken: list[Checkpoint] = []

    @property
    def step(self) -> int:
        return NEWCOMER if self.network is None else self.taken[-1].state.step

    def capture(self) -> Checkpoint:
        return self.taken[-1]

    def take(self, checkpoint: Checkpoint) -> Network:
        self.taken.append(checkpoint)
        self.network = network()
        return self.network

    def spare(self) -> dict[Place, Tensor]:
        return {}

    def note(self, state: CheckpointState) -> None:
        pass

    def forget(self) -> None:
        self.network = None


class Pair:
    """A leader and its one member, who have formed a generation."""

    def __init__(self, rendezvous: Rendezvous, checkpoint: Checkpoint) -> None:
        self.team = Team(rendezvous, CPU, lambda *said: None, lambda *told: None, hashed=same)
        self.holder = Holder()
        self.checkpoint = checkpoint
        self._network = network()
        self._over = threading.Event()
        self._member = Member(self.holder, 0, CPU, WorkerIdentity(), stop=self._over.is_set, hashed=same)
        self._thread = threading.Thread(target=lambda: list(self._member.requests(rendezvous)), daemon=True)
        self._thread.start()
        self.meet()

    def capture(self) -> Checkpoint:
        return self.checkpoint

    def meet(self) -> None:
        """Form generations until both are in one."""

        def met() -> bool:
            self.team.update_members(2, self._network, 0, self.capture, self.holder.take)
            return self.team.world == 2

        until(met)

    def close(self) -> None:
        self.team.close(done=True)
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def pair(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> Iterator[Pair]:
    made = Pair(Rendezvous(str(tmp_path / "rendezvous")), make_checkpoint(3))
    yield made
    made.close()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, ValueError])
def test_news_that_cannot_be_told_leave_nobody_waiting(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*given: Any) -> None:
        raise error("no room")

    with monkeypatch.context() as patched:
        patched.setattr(teams, "broadcast_state", fail)
        pair.team.network_changed()
        with pytest.raises(error):
            pair.team.share_news(pair.capture)
    assert pair.team.broken
    pair.meet()


def test_news_that_a_broken_generation_did_not_hear_are_reported_in_the_next(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all members compare is equal all the while: the news is of something else."""
    assert len(pair.holder.taken) == 1
    with monkeypatch.context() as patched:

        def broken(*given: Any) -> None:
            raise GroupBrokenError("the member did not hear it")

        patched.setattr(teams, "broadcast_state", broken)
        pair.team.network_changed()
        with pytest.raises(GroupBrokenError):
            pair.team.share_news(pair.capture)
    pair.meet()
    assert len(pair.holder.taken) == 1
    pair.team.share_news(pair.capture)
    pair.team.close(done=True)
    until(lambda: len(pair.holder.taken) == 2)
