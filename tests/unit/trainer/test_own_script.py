"""A loop of a user's own: the shipped example, alone and by real processes that come and go."""

from __future__ import annotations

import difflib
import os
import re
import runpy
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from own_scripts import epochs, shared
from trainer_processes import ended, meet, members, until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_script"


def accuracy_of(state: dict[str, torch.Tensor]) -> float:
    """Return the accuracy of the example's model on the images that it held out."""
    from sklearn.datasets import load_digits  # takes a second, of every process that collects tests

    digits = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model.load_state_dict(state)
    images, labels = torch.tensor(digits.images[::5], dtype=torch.float32) / 16, torch.tensor(digits.target[::5])
    return (model(images).argmax(1) == labels).float().mean().item()


def test_at_most_six_lines_are_changed():
    plain, elastic = ((EXAMPLE / name).read_text().splitlines() for name in ("plain.py", "elastic.py"))
    changes = [line for line in difflib.ndiff(plain, elastic) if line[0] in "+-"]
    assert sum(line[0] == "+" for line in changes) <= 6
    assert sum(line[0] == "-" for line in changes) <= 6


def test_the_book_shows_the_same_lines():
    plain, elastic = ((EXAMPLE / name).read_text().splitlines() for name in ("plain.py", "elastic.py"))
    changes = [line[0] + line[2:] for line in difflib.ndiff(plain, elastic) if line[0] in "+-"]
    page = (EXAMPLE.parents[1] / "docs" / "loops.md").read_text()
    shown = page.partition("```diff\n")[2].partition("```")[0].splitlines()
    assert sorted(line for line in shown if line[0] in "+-") == sorted(line for line in changes if '"""' not in line)
    assert all(line[1:] in plain for line in shown if line[0] in " -")


def test_alone_it_is_the_plain_loop(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = []
    for name in ("plain.py", "elastic.py"):
        monkeypatch.setattr(sys, "argv", [name, "6"])
        runpy.run_path(str(EXAMPLE / name), run_name="__main__")
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert list(epochs(said[1])) == list(range(6))
    assert accuracy_of(torch.load(tmp_path / "digits.pt", weights_only=True)) > 0.8  # of seed 0, in any run


def test_a_second_process_joins_leaves_and_joins_again(scripted):
    place = scripted(EXAMPLE / "elastic.py", "1000000")
    leader, extra = meet(place)
    until(lambda: len(shared(place)) > 2, place)
    place.allocate(1)
    until(lambda: members(place)[-1:] == [1] and place.report().acknowledged_generation == 2, place)
    interrupted = max(epochs(place.logs(0))) + 1
    alone = max(epochs(place.log))
    until(lambda: max(epochs(place.log)) > alone + 2, place)
    place.allocate(2)
    until(lambda: members(place)[-1:] == [2], place)
    until(lambda: max([-1, *shared(place, interrupted)]) > alone + 2, place)
    place.allocate(2, budget=1.0)  # the budget is over
    assert ended(leader, place) == 0, place.log
    lengths = epochs(place.log)
    # Where the budget is over just as an epoch begins, nobody takes a step in it, and the leader alone goes through it.
    last = max(epoch for epoch, length in lengths.items() if length != lengths.get(epoch - 1))
    until(lambda: last in epochs(place.logs(0)), place)
    assert shared(place, interrupted)[-1] == last
    # What stands behind the loop the leader does alone, with the model that all have trained.
    state = torch.load(place.folder / "digits.pt", weights_only=True)
    length = sum(parameter.square().sum().item() for parameter in state.values()) ** 0.5
    assert epochs(place.log)[last] == f"parameters of length {length:.9f}"
    assert re.findall(r"^accuracy (\S+)$", place.log, re.M) == [f"{accuracy_of(state):.3f}"]
    assert "accuracy" not in place.logs(0)
    assert place.report().phase == "Completed"
    assert extra.is_alive()  # it waits to be ended: one that ended by itself would be started again
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0


STEERED = """
import os, pathlib, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from espalier_trainer.own import join

batches, where, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
inputs = torch.randn(4 * batches, 3, generator=torch.Generator().manual_seed(0))
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
loop, loader = join(model, optimizer, DataLoader(data, batch_size=4, shuffle=True), scheduler)

def check(times):
    rate = optimizer.param_groups[0]["lr"]
    assert abs(rate - 0.1 * 0.9999**times) < 1e-9, f"{rate} at epoch {epoch}"

for epoch in loop.epochs():
    if where == "before":
        scheduler.step()
    taken = 0
    for features, labels in loader:
        if where != "within":
            check(epoch + (where == "before"))
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loop.backward(loss)
        optimizer.step()
        if where == "within":
            scheduler.step()
        time.sleep(0.002)
        taken += 1
        if taken == rounds:
            break
    if where == "within":
        check((epoch + 1) * batches)
    print(f"epoch {epoch}: ends", flush=True)
    if loop.leads and os.path.exists("end"):
        while f"epoch {epoch}: ends" not in pathlib.Path("log-0").read_text():
            time.sleep(0.01)
        how = pathlib.Path("end").read_text()
        os.remove("end")
        if how == "die":
            os.kill(os.getpid(), 9)
        raise RuntimeError("a disk was full, say")
    if where == "behind":
        scheduler.step()
"""
"""What stands around the batches must have happened once for each epoch or step, in all workers."""


@pytest.mark.sweep("ways to write a loop")
@pytest.mark.parametrize(("batches", "where"), [(1, "behind"), (1, "before"), (10, "behind"), (10, "before")])
def test_a_worker_comes_to_an_epoch_with_what_belongs_to_it(scripted, batches, where):
    place = scripted(STEERED, str(batches), where, "-1")
    place.allocate(1)
    leader = place.start()
    extra = place.start(0)
    until(lambda: epochs(place.log), place)
    for _ in range(2):
        place.allocate(2)
        until(lambda: members(place)[-1:] == [2], place)
        come = max(epochs(place.log))
        until(lambda: max([-1, *epochs(place.logs(0))]) > come + 3, place)  # noqa: B023
        place.allocate(1)
        until(lambda: members(place)[-1:] == [1], place)
        gone = max(epochs(place.log))
        until(lambda: max(epochs(place.log)) > gone + 3, place)  # noqa: B023
    assert leader.is_alive()
    assert extra.is_alive()


@pytest.mark.sweep("ways to write a loop")
@pytest.mark.parametrize(
    ("batches", "where", "rounds", "how"),
    [
        (1, "behind", -1, "die"),
        (10, "behind", -1, "die"),
        (10, "before", -1, "die"),
        (10, "behind", 4, "die"),
        (10, "behind", -1, "raise"),
    ],
)
def test_a_leader_that_ends_after_its_batches_does_nothing_twice(scripted, batches, where, rounds, how):
    arguments = (str(batches), where, str(rounds))
    place = scripted(STEERED, *arguments, checkpoint={"intervalSeconds": 3600})
    leader, extra = meet(place)
    until(lambda: len(epochs(place.logs(0))) > 1, place)  # from now on both count an epoch's batches alike
    (place.folder / "how").write_text(how)
    (place.folder / "how").rename(place.folder / "end")
    assert ended(leader, place) == (-signal.SIGKILL if how == "die" else 1), place.log
    if how == "raise":
        assert place.report().phase == "Failed"
        assert "the job is done" not in place.logs(0)
    last = max(epochs(place.log))
    again = place.start()
    until(lambda: max([-1, *shared(place)]) > last + 3, place)
    assert again.is_alive()
    assert extra.is_alive()
    assert [int(number) for number in re.findall(r"^epoch (\d+):", place.logs(0), re.M)].count(last) == 1


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_leader_goes_on_in_the_middle_of_an_epoch_as_it_was(scripted, where):
    place = scripted(STEERED, "60", where, "-1")
    place.allocate(1)
    leader = place.start()
    until(lambda: epochs(place.log) and place.report().step > 70, place)
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143, place.log
    last = max(epochs(place.log))
    again = place.start()
    until(lambda: max(epochs(place.log)) > last + 1, place)
    assert again.is_alive()


def test_what_is_done_at_each_step_is_done_once_where_a_worker_dies_in_one(scripted):
    place = scripted(STEERED, "10", "within", "-1")
    place.allocate(2)
    leader = place.start()
    for _ in range(2):
        extra = place.start(0)
        until(lambda: members(place)[-1:] == [2], place)
        come = max([-1, *epochs(place.log)])
        until(lambda: max([-1, *epochs(place.log)]) > come + 2, place)  # noqa: B023
        extra.kill()
        extra.join()
        until(lambda: members(place)[-1:] == [1], place)
    alone = max(epochs(place.log))
    until(lambda: max(epochs(place.log)) > alone + 2, place)
    assert leader.is_alive()


SMALL = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from espalier_trainer.own import join

inputs = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=4, shuffle=True)
"""
"""What is trained, and by what."""

LEFT = (
    SMALL
    + """
loop, loader = join(model, optimizer, loader)
for epoch in loop.epochs():
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        mean = loop.backward(loss)
        optimizer.step()
    print(f"epoch {epoch}: {mean}", flush=True)
    alike = loop.workers == 2 and mean < 0.4
    if (sys.argv[1] == "stop" and alike and loop.leads) or (sys.argv[1] == "all" and alike):
        loop.stop()
    if (sys.argv[1] in ("all", "break") and alike) or (not loop.leads and os.path.exists("end")):
        break
print("behind", flush=True)
while loop.leads and not os.path.exists("end"):
    time.sleep(0.05)
"""
)
"""A loop that ends early, in all workers or in one alone."""


@pytest.mark.parametrize("how", ["all", "stop", "break"])
def test_only_the_leader_goes_on_after_a_loop_that_is_over(scripted, how):
    place = scripted(LEFT, how)
    leader, extra = meet(place)
    until(lambda: "behind" in place.log, place)
    until(lambda: max(epochs(place.log)) in epochs(place.logs(0)), place)
    (place.folder / "end").touch()
    assert ended(leader, place) == 0, place.log
    assert place.report().phase == "Completed"
    assert ("call loop.stop()" in place.log) == (how == "break")
    assert extra.is_alive()
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0
    assert "behind" not in place.logs(0)


def test_a_worker_that_leaves_the_loop_alone_fails_and_says_why(scripted):
    place = scripted(LEFT, "one")
    leader, extra = meet(place)
    (place.folder / "end").touch()
    assert ended(extra, place) == 1, place.logs(0)
    assert "this worker left the loop over epochs in epoch" in place.logs(0)
    assert "behind" not in place.logs(0)
    until(lambda: members(place)[-1:] == [1], place)
    assert leader.is_alive()


PLATEAU = (
    SMALL
    + """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0)
loop, loader = join(model, optimizer, loader, scheduler)
for epoch in loop.epochs():
    total = 0.0
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        total += loop.backward(loss)
        optimizer.step()
        time.sleep(0.05 if epoch == 0 else 0.002)
    print(f"epoch {epoch}: {total}", flush=True)
    scheduler.step(total)
"""
)
"""Who comes in the middle of an epoch has a smaller sum than the others, and in the first nothing is the best yet."""


def test_who_comes_in_the_middle_of_an_epoch_follows_what_the_leader_decides(scripted):
    place = scripted(PLATEAU)
    place.allocate(2)
    leader = place.start()
    for _ in range(2):
        extra = place.start(0)
        until(lambda: members(place)[-1:] == [2], place)
        come = max([-1, *epochs(place.log)])
        until(lambda: max([-1, *epochs(place.logs(0))]) > come + 5, place)  # noqa: B023
        os.kill(extra.pid, signal.SIGTERM)
        assert ended(extra, place) == 0, place.logs(0)
        until(lambda: members(place)[-1:] == [1], place)
    assert leader.is_alive()
    assert not any(event.type == "Warned" and event.reason == "MembersDiffer" for event in place.events())


def test_a_leader_that_is_asked_to_end_after_its_loop_has_not_completed(scripted):
    text = (EXAMPLE / "elastic.py").read_text() + "\nprint('behind', flush=True)\nimport time\ntime.sleep(600)\n"
    place = scripted(text, "2")
    place.allocate(1)
    leader = place.start()
    until(lambda: "behind" in place.log, place)
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143
    assert place.report().phase == "Stopped"


def test_a_model_that_does_not_fit_when_it_has_grown_goes_on_as_it_was(scripted):
    text = (EXAMPLE / "elastic.py").read_text()
    text = text.replace("join(model, optimizer, loader)", "join(model, optimizer, loader, grow=True)")
    text = text.replace(
        "            loss =",
        "            assert len(list(model.parameters())) == 4, 'out of memory'\n            loss =",
    )
    place = scripted(text, "1000000", adaptation={"mode": "Auto", "fallback": "Heuristic", "maxAdaptations": 2})
    place.allocate(2)
    for _ in range(2):
        leader = place.start()
        assert ended(leader, place) == 1, place.log
        assert "out of memory" in place.log
    leader = place.start()
    late = max([-1, *epochs(place.log)])
    until(lambda: max([-1, *epochs(place.log)]) > late + 2, place)
    assert leader.is_alive()
    assert place.report().depth == 2


WHOLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from espalier_trainer.own import join

torch.manual_seed(0)
inputs = torch.randn(240, 8)
labels = (inputs.sum(1) > 0).long() + (inputs[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
first = torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)
second = torch.optim.AdamW(model[2].parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=50)
falling = torch.optim.lr_scheduler.LambdaLR(second, lambda step: 1 / (1 + step))
loader = DataLoader(TensorDataset(inputs, labels), batch_size=12, shuffle=True)
loop, loader = join(model, [first, second], loader, average, scaler, falling, accumulate=3, grow=True)
for epoch in loop.epochs():
    for features, targets in loader:
        for group in first.param_groups:
            group["lr"] = 0.05 * (1 - loop.fraction)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(features), targets)
        loop.backward(scaler.scale(loss))
        if loop.should_step:
            scaler.step(first)
            scaler.step(second)
            scaler.update()
            first.zero_grad()
            second.zero_grad()
            average.update_parameters(model)
            falling.step()
    told = [sum(p.double().sum().item() for p in each.parameters()) for each in (model, average.module)]
    count = len(list(average.parameters()))
    rate = round(0.01 / falling.get_last_lr()[0])
    print(f"epoch {epoch}: {told} {int(average.n_averaged)} {rate} {scaler.get_scale()} {loop.time_left()}", flush=True)
    print(f"{count} averaged", flush=True)
"""
"""All that a script may have: of everything, all workers print the same."""


def test_a_loop_with_everything_grows_is_joined_and_outlives_its_leader_and_a_stop(scripted):
    adaptation = {"mode": "Auto", "fallback": "Heuristic", "maxAdaptations": 2}
    place = scripted(WHOLE, adaptation=adaptation, checkpoint={"intervalSeconds": 3600})
    place.allocate(1)
    leader = place.start()
    extra = place.start(0)
    until(lambda: len(epochs(place.log)) > 1, place)
    place.allocate(2)
    until(lambda: "8 averaged" in place.logs(0), place)
    assert [each.result for each in place.report().adaptations] == ["Grown", "Grown"]
    come = max(epochs(place.log))
    until(lambda: max([-1, *shared(place)]) > come + 3, place)
    leader.kill()
    leader.join()
    before = max(epochs(place.log))
    leader = place.start()
    until(lambda: max([-1, *shared(place)]) > before + 3, place)
    for process, code in ((leader, 143), (extra, 0)):
        os.kill(process.pid, signal.SIGTERM)
        assert ended(process, place) == code
    before = max(epochs(place.log))
    place.start()
    place.start(0)
    until(lambda: max([-1, *shared(place)]) > before + 3, place)
    for number, said in epochs(place.log).items():
        updates, rate = map(int, said.split("] ")[1].split()[:2])
        # An epoch is 20 batches, of which 18 make steps.
        assert updates == rate - 1 == 6 * (number + 1)
    assert not any(event.type == "Warned" and event.reason == "MembersDiffer" for event in place.events())
