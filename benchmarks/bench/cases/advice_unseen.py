"""Does the shipped policy know where to grow? Judged on the families of `unseen_models`, which it has not met.

Beside it: never growing, always the first growth, the growth that mixes places first, the first whole block, and other
policies. A family is judged by what its decisions cost: the test score below that of the best arm.

Takes an hour. With `--records benchmarks/bench/held_back/*`, nothing is trained: policies are judged on the language
models that none may learn from: three seeds, an hour and a half of a core each, of

    espalier agent collect --corpus language-unseen --way every --moments 15%,40%,70% --most 2 --output ...
    espalier agent collect --corpus benchmarks/bench/unseen_language.py ...
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.command import PICTURE, BenchError, Option
from bench.printing import Parts, Table
from espalier_agent.policies.policy import Policy, open_policy
from espalier_agent.policies.tree_features import STATIC, RequestFacts, static_features
from espalier_core.growth.block import ADD_BLOCK
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_core.types.outcomes import CaseRecord, MomentRecord, read_corpus
from espalier_core.types.task import Task
from espalier_lab.growth.corpus.families import Families
from espalier_lab.growth.judge.case import CaseFile, JudgeCase
from espalier_lab.growth.judge.deciding import Setting
from espalier_lab.growth.judge.judging import JudgeSettings
from espalier_lab.growth.judge.running import cores
from espalier_lab.growth.judge.trialling import RACE_GPUS, proposal, race_winner
from espalier_lab.growth.judge.verdict import JudgeVerdict, Rule, decisions_of, judged
from espalier_lab.growth.progress_line import ProgressLine

MODELS = Path(__file__).parents[1] / "unseen_models.py"
KEEPS = True
OPTIONS = {
    "seeds": Option(3),
    "families": Option(0, "only so many, cheap and different ones; 0: all"),
    "most": Option(3, "growths tried of each model"),
    "no_trials": Option(False, "leave Confirm out, whose late growths are trained in addition to the arms"),
    "drawn": Option(None, "judge 34 other families, which this seed draws", type=int),
    "policy": Option([], "other policies", type=Path),
    "records": Option([], "files of records to judge on, in place of training", type=Path),
    "parallel": Option(cores()),
    "picture": PICTURE,
}
QUICK = {"seeds": 1, "families": 5}
DRAWN = (("image", 12), ("tokens", 8), ("table", 6), ("signal", 8))
"""Families of `--drawn`, by kind of input."""
BARS = (
    ("advice", 0.6, "before delay"),
    ("race", 0.6, "with four extra GPUs"),
    ("confirm", 0.75, "with the delay of one extra GPU"),
)
HARM_BAR = 0.15
BAR, BAR_HARM = 0.5, 0.1
"""On records: share of the regret of the best simple rule, and share of decisions that end worse than nothing."""
INEXACT = (Insertion.SCALED, Insertion.UNFOLD)
SIMPLE = ("none", "first", "first block", *(f"first block, {way}" for way in INEXACT))
"""Advisors that look at nothing. Without blocks, those that add one do nothing."""
_MIXES_FIRST = STATIC.index("first that mixes places")


@dataclass(frozen=True)
class Part:
    """Some of the cases: those of cheap, different families."""

    count: int
    """How many; 0: all."""

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Make them."""
        cases = CaseFile(str(MODELS))()
        if not self.count:
            return cases
        half = cases[: len(cases) // 2]
        return tuple(sorted(half, key=lambda case: case.steps * _width(case))[: self.count])


@dataclass(frozen=True)
class Drawn:
    """The cases of families that a seed draws: nobody has looked at them before."""

    seed: int

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Make them."""
        return Families("drawn", self.seed, DRAWN)()


def _width(case: JudgeCase) -> int:
    return sum(parameter.numel() for parameter in case.built(0).parameters())


def mixing(record: CaseRecord, moment: MomentRecord) -> Action:
    """Return the first growth that lets places see each other: the best fixed rule that was measured before."""
    if record.architecture is None:
        return Action.nothing()
    features = static_features(record.architecture, RequestFacts())
    actions = [arm.action for arm in moment.arms]
    return next((one for one in actions if one.grows and features[one][_MIXES_FIRST]), Action.nothing())


def advised_by(policy: Policy) -> Rule:
    """Return what a policy advises without trials."""
    return lambda record, moment: proposal(policy, record, moment).action


def raced_by(policy: Policy, gpus: int) -> Rule:
    """Return what wins a race of the policy's growths: it needs no more training than the arms."""
    return lambda record, moment: race_winner(proposal(policy, record, moment), moment, gpus)


def first_block(insertion: Insertion | None = None) -> Rule:
    """Return the rule that adds the first whole block that a model offers."""

    def rule(record: CaseRecord, moment: MomentRecord) -> Action:
        blocks = [arm.action for arm in moment.every if arm.action.kind == ADD_BLOCK.name]
        return next((action for action in blocks if action.insertion is insertion), Action.nothing())

    return rule


def run(options: argparse.Namespace) -> Parts:
    """Judge the shipped policy on families that it has not met."""
    if options.families and options.drawn is not None:
        raise BenchError("--families judges some of the fixed list; leave it out with --drawn")
    if options.records:
        yield from on_records(options)
        return
    part = Part(options.families) if options.drawn is None else Drawn(options.drawn)
    trials, setting = not options.no_trials, Setting(most=options.most)
    judgement = JudgeSettings(part, part(), options.seeds, setting, options.work_dir, options.parallel)
    records, tried = judgement.records(ProgressLine("trainings"), trials=trials)
    rules: dict[str, Rule] = {"mixes first": mixing, "race, one GPU": raced_by(open_policy(None), 1)}
    if not trials:
        rules["advice"] = advised_by(open_policy(None))
        rules["race"] = raced_by(open_policy(None), RACE_GPUS)
    for folder in options.policy:
        rules[folder.name] = advised_by(open_policy(folder))
    verdict = judged(decisions_of(records, tried, rules))
    yield from verdicts(verdict)
    if options.picture:
        from espalier_lab.growth.judge.picture import draw

        draw(verdict, options.picture)
    if options.quick and verdict.regret["advice"] > max(verdict.regret["none"], verdict.regret["first"]):
        raise BenchError("the advice is worse than both never and always growing")


def on_records(options: argparse.Namespace) -> Parts:
    """Judge policies on records: each task by itself, and whether they are as good as they should be."""
    records = [record for path in options.records for record in read_corpus(path).cases]
    policies = {"advice": open_policy(None)} | {folder.name: open_policy(folder) for folder in options.policy}
    rules = {name: first_block(way) for name, way in zip(SIMPLE[2:], (None, *INEXACT), strict=True)}
    for name, policy in policies.items():
        rules |= {name: advised_by(policy), f"{name}, race on one GPU": raced_by(policy, 1)}
    for task in Task:
        if not (decisions := decisions_of([one for one in records if one.task is task], (), rules)):
            continue
        verdict = judged(decisions, SIMPLE)
        yield from verdicts(verdict, f"{task}, {verdict.title}: ", bars=())
        yield Table("Gain over not growing", ["family", "best", *SIMPLE[1:], *policies], list(gains(verdict, policies)))
        rival = min(SIMPLE, key=verdict.regret.__getitem__)
        for name in policies:
            share = verdict.regret[name] / verdict.regret[rival] if verdict.regret[rival] else math.inf
            sure = all(verdict.paired[name, simple][2] < 0 for simple in SIMPLE if (name, simple) in verdict.paired)
            met = sure and share <= BAR and verdict.worse[name] <= BAR_HARM
            yield (
                f"{name}: {share:.0%} of the regret of {rival} (bar {BAR:.0%}), worse than none in "
                f"{verdict.worse[name]:.0%} (bar {BAR_HARM:.0%}), {'' if sure else 'not '}surely better than each "
                f"simple rule: {'reached' if met else 'missed'}"
            )


def gains(verdict: JudgeVerdict, policies: Iterable[str]) -> Iterator[list[str]]:
    """Yield a row for each family: what each advisor gains, on average over its decisions."""
    for family in sorted({one.family for one in verdict.decisions}):
        ones = [one for one in verdict.decisions if one.family == family]
        nothing = statistics.fmean(one.regret("none") for one in ones)
        named = [nothing - statistics.fmean(one.regret(name) for one in ones) for name in (*SIMPLE[1:], *policies)]
        yield [family, *(f"{gain:+.3f}" for gain in (nothing, *named))]


def verdicts(verdict: JudgeVerdict, what: str = "", bars: Sequence[tuple[str, float, str]] = BARS) -> Parts:
    """Give the tables, and whether the bars are reached."""
    title = f"{what}{verdict.cases} cases of {verdict.families} families, {len(verdict.decisions)} decisions"
    rows = []
    for name, regret in verdict.regret.items():
        within = "{:.4f} to {:.4f}".format(*verdict.interval[name]) if name in verdict.interval else "-"
        rows.append([name, f"{regret:.4f}", within, f"{verdict.worse[name]:.0%}"])
    yield Table(title, ["advisor", "regret", "95 %", "worse than none"], rows)
    for (name, simple), (mean, low, high) in verdict.paired.items():
        yield f"{name} - {simple}: {mean:+.4f} ({low:+.4f} to {high:+.4f})"
    better = min(verdict.regret["none"], verdict.regret["first"])
    for name, bar, when in bars:
        if name in verdict.regret and better > 0:
            share, harm = verdict.regret[name] / better, verdict.worse[name]
            reached = "reached" if share <= bar and harm <= HARM_BAR else "missed"
            yield f"{name}, {when}: {share:.0%} of the better simple rule (bar {bar:.0%}), harm {harm:.0%}: {reached}"
