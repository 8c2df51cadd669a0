"""The tasks of a judgement: the arms of a case and seed, and the trials of a policy on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from espalier_agent.policies.policy import Policy, open_policy
from espalier_core.estimates.gains import EVIDENCE, SHARES
from espalier_core.estimates.trial_worth import PRICE
from espalier_core.types.job import Trials as Manner
from espalier_core.types.outcomes import MARKS, CaseRecord
from espalier_lab.growth.judge.case import JudgeCase
from espalier_lab.growth.judge.deciding import Setting, decided
from espalier_lab.growth.judge.records import TrialsRecord, key_of
from espalier_lab.growth.judge.trialling import RACE_GPUS, tried
from espalier_trainer.trials.rules import KEPT


@dataclass(frozen=True)
class Arms:
    """Train all arms of one case with one seed."""

    place: int
    seed: int
    setting: Setting

    def file(self, case: JudgeCase) -> str:
        """Return the file's name."""
        return key_of(
            case,
            self.seed,
            "arms",
            MARKS,
            SHARES[Manner.CONFIRM],
            *self.setting.facts(),
        )

    def record(self) -> type[CaseRecord]:
        """Return its class."""
        return CaseRecord

    def __call__(self, case: JudgeCase) -> CaseRecord:
        """Train them."""
        return decided(case, self.seed, self.setting)


@dataclass(frozen=True)
class TrialTask:
    """Train the trials of a policy for one case and seed."""

    place: int
    arms: CaseRecord
    setting: Setting
    policy: Path | None
    """Folder of the policy; None: the shipped one."""
    version: str

    def file(self, case: JudgeCase) -> str:
        """Return the file's name."""
        rules = (sorted(SHARES.items()), sorted(map(str, EVIDENCE.items())), RACE_GPUS, sorted(KEPT.items()), PRICE)
        return key_of(case, self.arms.seed, "trials", self.version, *self.setting.facts(), rules)

    def record(self) -> type[TrialsRecord]:
        """Return its class."""
        return TrialsRecord

    def __call__(self, case: JudgeCase) -> TrialsRecord:
        """Train it."""
        return tried(case, self.arms, self.setting, _policy(self.policy))


@lru_cache(maxsize=1)
def _policy(folder: Path | None) -> Policy:
    return open_policy(folder)
