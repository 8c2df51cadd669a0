"""A leader and a member in a thread: steps that it announces, so that no command precedes them, and what it tells."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.elastic import GroupBrokenError, Team
from espalier_trainer.elastic import team as teams
from espalier_trainer.elastic.delivery import Place
from espalier_trainer.elastic.group import Group
from espalier_trainer.elastic.member import Member
from espalier_trainer.elastic.membership import NEWCOMER, ONE, Portion, WorkerIdentity
from espalier_trainer.elastic.states import Code, Command
from espalier_trainer.elastic.step import StepPlan, StepResult, joint_step
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.training.network import Network
from groups import together
from waiting import until

CPU = torch.device("cpu")
ROWS = 4
RATE = 0.1 + 1e-12
"""Not a number of 32 bits."""


def network() -> Network:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    return Network(module, torch.optim.SGD(module.parameters(), lr=1.0), None)


def batch(cursor: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 * cursor + rank)
    return torch.randn(ROWS, 3, generator=generator), torch.randint(2, (ROWS,), generator=generator)


def take(own: Network, group: Group, cursor: int, **options: Any) -> StepResult:
    return joint_step(own, StepPlan(group, **options), *batch(cursor, group.rank), ROWS * group.world)


def same(own: Network) -> int:
    return 7


class Holder:
    """Keeps all states that it was given, and whatever happens what it came with."""

    def __init__(self, network: Network | None) -> None:
        self.network = self._own = network
        self.taken: list[Checkpoint] = []
        self.notes = 0

    @property
    def step(self) -> int:
        return self.taken[-1].state.step if self.taken else NEWCOMER

    def capture(self) -> Checkpoint:
        return self.taken[-1]

    def take(self, checkpoint: Checkpoint) -> Network:
        self.taken.append(checkpoint)
        self.network = network()
        return self.network

    def spare(self) -> dict[Place, Tensor]:
        return {}

    def note(self, state: CheckpointState) -> None:
        self.notes += 1

    def forget(self) -> None:
        self.network = self._own


class Follower:
    """A member in a thread, which takes the steps that it is told of."""

    def __init__(self, rendezvous: Rendezvous, own: Network | None) -> None:
        self.holder = Holder(own)
        self.cursors: list[int] = []
        self.rates: set[float] = set()
        self.void = 0
        self._member = Member(self.holder, 0, CPU, WorkerIdentity(), stop=lambda: False, hashed=same)
        self.thread = threading.Thread(target=self._run, args=(rendezvous,), daemon=True)
        self.thread.start()

    def _run(self, rendezvous: Rendezvous) -> None:
        for turn in self._member.requests(rendezvous):
            if turn.command.code is not Code.STEP or self.holder.network is None:
                continue
            try:
                joint = take(self.holder.network, turn.group, turn.command.cursor)
            except GroupBrokenError as error:
                turn.broken = error
                continue
            self.void += joint.void
            if turn.taken(joint):
                self.cursors.append(turn.command.cursor)
                self.rates.add(self.holder.network.optimizer.param_groups[0]["lr"])


class Pair:
    def __init__(self, rendezvous: Rendezvous, note: Checkpoint, theirs: Network | None) -> None:
        self.team = Team(rendezvous, CPU, lambda *said: None, lambda *told: None, hashed=same)
        self.network, self.note = network(), note
        self.follower = Follower(rendezvous, theirs)
        self.cursors: list[int] = []
        self.notes = 0
        self.meet()

    def meet(self) -> None:
        def met() -> bool:
            self.team.update_members(2, self.network, 0, lambda: self.note, lambda found: self.network)
            return self.team.world == 2

        until(met)

    def step(self, cursor: int, then: Portion | None = ONE, *, measured: bool = False) -> None:
        self.share()
        group = self.team.begin_step(0, cursor, measured=measured, then=then)
        with self.team.stepping():
            joint = take(self.network, group, cursor, rate=RATE, follows=self.team.announces)
        self.team.stepped(joint)
        self.cursors.append(cursor)

    def tell(self) -> None:
        self.notes += 1
        self.team.state_changed()
        self.share()

    def share(self) -> None:
        self.team.share_news(lambda: self.note)

    def end(self) -> None:
        self.team.close(done=True)
        self.follower.thread.join(30)
        assert not self.follower.thread.is_alive()


@pytest.fixture
def pair(tmp_path, make_checkpoint):
    """A member that holds what the leader does."""
    made = Pair(Rendezvous(str(tmp_path / "rendezvous")), make_checkpoint(3), network())
    made.tell()
    yield made
    made.end()
    assert made.follower.holder.taken == [], "nobody asks for a state"


@pytest.fixture
def newcomer(tmp_path, make_checkpoint):
    """A member that came with nothing, and was given the state."""
    made = Pair(Rendezvous(str(tmp_path / "rendezvous")), make_checkpoint(3), None)
    assert len(made.follower.holder.taken) == 1
    yield made
    made.end()


@pytest.fixture
def commands(monkeypatch):
    sent: list[Code] = []
    sending = Command.sending

    def counted(command: Command, group: Group) -> Any:
        sent.append(command.code)
        return sending(command, group)

    monkeypatch.setattr(Command, "sending", counted)
    return sent


def assert_alike(pair: Pair) -> None:
    pair.end()
    assert pair.follower.cursors == pair.cursors
    assert pair.follower.rates <= {RATE}
    for mine, other in zip(
        pair.network.module.parameters(), pair.follower.holder.network.module.parameters(), strict=True
    ):
        assert torch.equal(mine, other)


def test_steps_of_an_epoch_need_one_command(pair, commands):
    for cursor in range(20):
        pair.step(cursor, ONE if cursor < 19 else None)
    assert commands == [Code.STEP]
    assert_alike(pair)
    assert pair.follower.void == 0


def test_an_announced_step_is_not_taken_where_the_leader_decides_otherwise(pair):
    pair.step(0)
    pair.tell()  # the member computes step 1 already
    pair.step(5)
    pair.step(6, Portion(batches=2))  # another portion follows, so nothing is foretold
    pair.step(7)
    pair.step(8, measured=True)
    pair.team.end_epoch(0)
    pair.step(0)
    assert_alike(pair)
    assert pair.follower.void == 4  # the note, the measured step, the epoch's end, the end
    assert pair.follower.holder.notes >= 2


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_leader_does_next_all_take_the_same_steps(pair, seed):
    chance = random.Random(seed)
    cursor = 0
    for _ in range(40):
        what = chance.choice(["step"] * 6 + ["note", "wait", "epoch", "jump", "form"])
        if what == "step":
            pair.step(cursor, chance.choice([ONE, ONE, ONE, None, Portion(passes=2)]), measured=chance.random() < 0.1)
            cursor += 1
        elif what == "note":
            pair.tell()
        elif what == "wait":
            pair.team._spoke = 0.0
            pair.team.wait()
        elif what == "epoch":
            pair.team.end_epoch(0)
        elif what == "jump":
            cursor = chance.randrange(9)
        else:
            pair.team.update_members(1, pair.network, 0, lambda: pair.note, lambda found: pair.network)
            pair.meet()
    assert_alike(pair)


def test_a_member_that_is_gone_while_a_step_is_taken_back_breaks_the_generation(pair, monkeypatch):
    pair.step(0)
    sum_nothing = "espalier_trainer.elastic.generations.take_back"

    def gone(group: Group) -> None:
        raise GroupBrokenError("connection closed by peer")

    with monkeypatch.context() as patched:
        patched.setattr(sum_nothing, gone)
        with pytest.raises(GroupBrokenError):
            pair.tell()
    assert pair.team.broken
    assert not pair.team.announced
    pair.meet()
    pair.step(0)


def test_an_exchange_takes_as_long_as_for_whoever_was_ready_last():
    """What each member has measured comes with the next step; who waits for others has measured more."""

    def act(group: Group) -> list[tuple[float | None, bool]]:
        own, told = network(), []
        for cursor, given in enumerate((None, (5.0, 2.0), (None, 2.0), None, None)):
            if given is not None:
                group.exchanged = given[group.rank]
            joint = take(own, group, cursor, measured=cursor == 3)
            told.append((joint.sync_seconds, group.exchanged is None))
        return told

    for told in together(2, act):
        (first, _), (second, _), (third, _), (fourth, unknown), (fifth, _) = told
        assert (first, second, third) == (None, 2.0, None)
        assert fourth > 0
        assert unknown, "that of a step in which norms were measured is left out"
        assert fifth is None


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, ValueError, GroupBrokenError])
def test_news_that_cannot_be_told_leave_nobody_waiting_and_are_told_in_the_next_generation(
    newcomer, monkeypatch, error
):
    """What all members compare is equal all the while: the news is of something else."""

    def fail(*given: Any) -> None:
        raise error("no room, or the member did not hear it")

    with monkeypatch.context() as patched:
        patched.setattr(teams, "broadcast_state", fail)
        newcomer.team.network_changed()
        with pytest.raises(error):
            newcomer.share()
    assert newcomer.team.broken
    newcomer.meet()
    taken = newcomer.follower.holder.taken
    assert len(taken) == 1
    newcomer.share()
    newcomer.team.close(done=True)
    until(lambda: len(taken) == 2)
