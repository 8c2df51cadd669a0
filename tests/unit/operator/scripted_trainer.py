"""A real trainer process without torch: speaks the file contracts and misbehaves as told.

Options as `name=value` arguments, all optional; times in wall seconds unless said otherwise:
startup=S        before the first report
exit-after=S     budget seconds of this incarnation after which it exits with exit-code=N, at most exits=N times
ignore-term=yes  ignore SIGTERM
overrun=yes      continue past the budget
fail=S           after S budget seconds, report that it fails for a mistake of the user's, and leave for 1 s
damage=half      now and then write half a report; damage=future: one of a future version
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from espalier_core.files.documents import dumps, read_document, write_document
from espalier_core.types import environment as names
from espalier_core.types.allocation import AllocationDocument
from espalier_core.types.events import TrainerStarted
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase

FINAL = {2: Reason.INVALID_SPEC, 3: Reason.LOSS_NOT_FINITE}
"""What is reported with an exit code."""


class Trainer:
    def __init__(self) -> None:
        self.env = os.environ
        self.options = dict(argument.split("=", 1) for argument in sys.argv[1:])
        self.allocation_file = Path(self.env[names.ALLOCATION_FILE])
        self.report_file = Path(self.env[names.REPORT_FILE])
        self.folder = Path(self.env[names.CHECKPOINT_DIR])
        self.folder.joinpath("environment.json").write_text(json.dumps(dict(os.environ)))
        self.scale = float(self.env[names.TIME_SCALE])
        self.incarnation = uuid.uuid4().hex
        self.term = False
        signal.signal(signal.SIGTERM, self.on_term)
        self.document = read_document(self.allocation_file, AllocationDocument)
        self.acknowledged = 0
        self.before = self.document.time_budget.used_seconds
        self.started = time.monotonic()
        self.step = 0

    def on_term(self, number: int, frame: object) -> None:
        self.term = self.options.get("ignore-term") != "yes"

    def used(self) -> float:
        return self.before + (time.monotonic() - self.started) * self.scale

    def report(self, phase: TrainerPhase, reason: Reason | None = None) -> None:
        report = Report(
            job=self.document.job,
            incarnation=self.incarnation,
            acknowledged_generation=self.acknowledged,
            phase=phase,
            reason=reason,
            step=self.step,
            used_seconds=self.used(),
            updated_time=datetime.now(UTC),
        )
        damage = self.options.get("damage") if phase is TrainerPhase.TRAINING else None
        if damage == "half" and self.step % 3 == 1:
            self.report_file.write_text(dumps(report)[:40])
        elif damage == "future" and self.step % 3 == 1:
            self.report_file.write_text(dumps(report).replace('"version": 1', '"version": 99'))
        else:
            write_document(self.report_file, report)

    def end(self, phase: TrainerPhase, reason: Reason, code: int) -> None:
        self.folder.joinpath("last.json").write_text(json.dumps({"used": self.used()}))
        self.report(phase, reason)
        sys.exit(code)

    def run(self) -> None:
        while (self.env.get(names.WORKER_ROLE), self.env.get(names.WORKER_INDEX)) not in ((None, None), ("base", "0")):
            time.sleep(0.01)  # it trains with the leader, which reports
            if self.term:
                sys.exit(0)
        time.sleep(float(self.options.get("startup", "0")))
        self.started = time.monotonic()
        with Path(self.env[names.EVENTS_FILE]).open("a") as events:
            event = TrainerStarted(
                time=datetime.now(UTC), used_seconds=self.before, incarnation=self.incarnation, resumed=False,
                epoch=0, step=0, depth=1, parameters=1, device="cpu",
            )  # fmt: skip
            events.write(event.model_dump_json(by_alias=True) + "\n")
        self.report(TrainerPhase.TRAINING)
        exit_after = float(self.options.get("exit-after", "inf"))
        while True:
            time.sleep(0.01)
            self.step += 1
            self.document = read_document(self.allocation_file, AllocationDocument)
            generation = self.document.allocation.generation
            if generation > self.acknowledged:
                self.acknowledged = generation
                self.report(TrainerPhase.TRAINING)
            elif self.step % 10 == 0 or self.options.get("damage"):
                self.report(TrainerPhase.TRAINING)
            if self.term or self.document.stop:
                self.end(TrainerPhase.STOPPED, Reason.SUSPENDED, 143 if self.term else 0)
            if self.used() >= self.before + float(self.options.get("fail", "inf")):
                self.report(TrainerPhase.FAILED, Reason.INVALID_SPEC)
                time.sleep(1)
                sys.exit(2)
            if self.used() >= self.before + exit_after and self.may_exit():
                code = int(self.options.get("exit-code", "1"))
                if code in FINAL:
                    self.report(TrainerPhase.FAILED, FINAL[code])
                sys.exit(code)
            budget = self.document.time_budget.budget_seconds
            if self.used() >= budget and self.options.get("overrun") != "yes":
                self.end(TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED, 0)

    def may_exit(self) -> bool:
        most = int(self.options.get("exits", "1000"))
        count_file = self.folder / "exits"
        count = int(count_file.read_text()) if count_file.exists() else 0
        count_file.write_text(str(count + 1))
        return count < most


Trainer().run()
