"""How a script ends, by real processes, and what its exit code and its last report mean together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from espalier_core.files.documents import write_text_atomically
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_operator.job.ends import Failure, judge_exit
from espalier_operator.model import Ended
from trainer_processes import Workplace, ended
from waiting import PATIENCE

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm
from espalier_trainer.own import join

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loop, loader = join(model, optimizer, DataLoader(TensorDataset(torch.rand(8, 2), torch.arange(8) % 2), batch_size=2))

def epochs():
    for epoch in loop.epochs(COUNT):
        yield epoch

def main():
    for epoch in LOOP:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loop.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        if epoch == 1:
            ACT

def swallowed():
    try:
        main()
    except BaseException as error:
        print("caught", error)

RUN
"""
MIDDLE = Failure("exit code 0 before its loop or its budget was over; loop.stop() ends a loop early")
NOTHING = Ended(reason=Reason.NOTHING_TRAINED, failed=True, message="it ended with exit code 0 before it trained")
LEFT = Ended(reason=Reason.COMPLETED, failed=False, message="the script left the loop")
NEVER = Ended(reason=Reason.NOTHING_TRAINED, failed=True, message="all epochs are done, and no step was taken")
DONE = Ended(reason=Reason.COMPLETED, failed=False, message="all epochs are done")


def script(**changes: str) -> str:
    text = SCRIPT
    for name, value in ({"ACT": "pass", "RUN": "main()", "LOOP": "loop.epochs(COUNT)"} | changes).items():
        text = text.replace(name, value)
    return text.replace("COUNT", changes.get("COUNT", "1000000"))


def judged(place: Workplace, code: int) -> Ended | Failure:
    """Return the verdict on a process; its file is called SCRIPT."""
    verdict = judge_exit(code, place.report())
    message = re.sub(rf"{re.escape(str(place.folder))}/\w+\.py", "SCRIPT", verdict.message)
    return replace(verdict, message=message)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"ACT": "sys.exit(2)"}, Failure("exit code 2; see its log")),
        ({"ACT": "sys.exit('diverged')"}, Failure("exit code 1; see its log")),
        ({"ACT": "sys.exit(0)"}, MIDDLE),
        ({"ACT": "raise ValueError", "RUN": "swallowed()"}, MIDDLE),
        ({"ACT": "raise KeyboardInterrupt"}, Failure("exit code 1; see its log")),
        ({"ACT": "raise KeyError('heads')"}, Failure("exit code 1: KeyError: 'heads' (SCRIPT:24, in main)")),
        ({"ACT": "os._exit(0)"}, MIDDLE),
        ({"ACT": "os._exit(3)"}, Failure("exit code 3; see its log")),
        ({"ACT": "os.kill(os.getpid(), signal.SIGKILL)"}, Failure("ended by SIGKILL; see its log")),
        ({"ACT": "if os.fork() == 0: sys.exit(0)\n            os.wait(); os._exit(0)"}, MIDDLE),
        ({"ACT": "loop.stop()"}, LEFT),
        ({"ACT": "loop.stop(); break"}, LEFT),
        ({"ACT": "loop.stop(); return", "LOOP": "held", "RUN": "held = loop.epochs(COUNT); main()"}, LEFT),
        ({"ACT": "loop.stop(); sys.exit(0)"}, LEFT),
        ({"ACT": "loop.stop(); sys.exit(3)"}, Failure("exit code 3; see its log")),
        ({"ACT": "loop.stop(); os._exit(0)"}, MIDDLE),
        ({"RUN": "loop.stop(); main()"}, NEVER),
        ({"ACT": "break"}, LEFT),
        ({"ACT": "return", "LOOP": "tqdm(loop.epochs(COUNT), disable=True)"}, LEFT),
        ({"ACT": "break", "LOOP": "epochs()"}, LEFT),
        ({"ACT": "try: break\n            finally: print()"}, LEFT),
        ({"ACT": "return", "LOOP": "held", "RUN": "held = loop.epochs(COUNT); main()"}, MIDDLE),
        ({"ACT": "raise ValueError", "LOOP": "tqdm(loop.epochs(COUNT), disable=True)", "RUN": "swallowed()"}, MIDDLE),
        ({"ACT": "raise ValueError", "LOOP": "epochs()", "RUN": "swallowed()"}, MIDDLE),
        ({"ACT": "break", "RUN": "main(); os._exit(0)"}, LEFT),
        ({"ACT": "break", "RUN": "main(); sys.exit(3)"}, Failure("exit code 3; see its log")),
        ({"COUNT": "1"}, DONE),
        ({"COUNT": "1", "RUN": "main(); sys.exit(0)"}, DONE),
        ({"COUNT": "1", "RUN": "main(); os._exit(2)"}, Failure("exit code 2; see its log")),
        ({"RUN": "sys.exit()"}, NOTHING),
    ],
    ids=str,
)
def test_the_exit_code_and_the_last_report_decide_together(scripted, changes, verdict):
    place = scripted(script(**changes))
    place.allocate(1)
    assert judged(place, ended(place.start(), place)) == verdict, place.log
    if isinstance(verdict, Ended) and not verdict.failed:
        assert list(place.checkpoints.glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("sys.exit(3)", "after its training: exit code 3"),
        ("raise ValueError('no figure')", "its code after the loop failed: ValueError: no figure"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "after its training: ended by SIGKILL"),
        ("sys.exit(0)", ""),
    ],
)
def test_a_budget_that_is_used_up_stays_so_whatever_the_script_does_then(scripted, run, said):
    place = scripted(script(RUN=f"main(); {run}"), budget=0.3)
    place.allocate(1)
    verdict = judge_exit(ended(place.start(), place), place.report())
    assert isinstance(verdict, Ended), place.log
    assert (verdict.reason, verdict.failed, verdict.message[: len(said)]) == (Reason.BUDGET_EXHAUSTED, False, said)
    assert list(place.checkpoints.glob("checkpoint-*"))


BEFORE = """
import argparse, os, subprocess, sys
import espalier_trainer.own
subprocess.run([sys.executable, "-c", "import espalier_trainer.own; 1 / 0"])  # of which nobody reports
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
"""


HEADS = Ended(reason=Reason.INVALID_SPEC, failed=True, message="KeyError: 'heads' (SCRIPT:7)")


@pytest.mark.parametrize(
    ("act", "verdict"),
    [
        ("parser.parse_args()", Failure("exit code 2; see its log")),
        ("os._exit(0)", NOTHING),
        ("raise KeyError('heads')", HEADS),
    ],
)
def test_a_script_that_ends_before_it_joins_has_trained_nothing(workplace, make_job, act, verdict):
    place = workplace(make_job())
    place.allocate(1)
    write_text_atomically(place.folder / "job.json", place.job.model_dump_json(by_alias=True, exclude_none=True))
    (place.folder / "script.py").write_text(BEFORE + act)
    command, environment = [sys.executable, str(place.folder / "script.py")], {**os.environ, **place.variables()}
    code = subprocess.run(command, env=environment, timeout=PATIENCE, check=False).returncode
    assert place.report().phase is (TrainerPhase.FAILED if verdict is HEADS else TrainerPhase.STARTING)
    assert judged(place, code) == verdict


USERS = """
import os, sys
import torch
from torch import nn

def exits():
    sys.exit(0)

def vanishes():
    os._exit(0)

class Late(nn.Sequential):
    def forward(self, inputs):
        start = vars(self).setdefault("start", self[1].weight.detach().clone())
        if self.training and not torch.equal(start, self[1].weight):
            sys.exit("late")
        return super().forward(inputs)

def exits_later():
    return Late(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (
            "exits",
            Ended(
                reason=Reason.INVALID_SPEC,
                failed=True,
                message="training.model.entrypoint: users:exits ends the program (sys.exit, code 0); let it raise an "
                "error (SCRIPT:7, in exits)",
            ),
        ),
        ("vanishes", NOTHING),
        ("exits_later", Failure("exit code 1: SystemExit: late (SCRIPT:16, in forward)")),
    ],
)
def test_a_function_of_the_jobs_that_ends_the_program_has_failed(workplace, make_job, tmp_path, function, verdict):
    (tmp_path / "users.py").write_text(USERS)
    job = make_job(training={"model": {"entrypoint": f"users:{function}"}}, timeBudgetSeconds=60)
    place = workplace(job, python_path=(str(tmp_path),))
    place.allocate(1)
    assert judged(place, ended(place.start(), place)) == verdict, place.log
