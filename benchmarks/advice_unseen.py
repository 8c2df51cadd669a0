"""Does the shipped policy know where to grow? Judged on the families of `unseen_models`, which it has not met.

Beside it: never growing, always the first growth, the growth that mixes places first, and other policies. A family is
judged by what its decisions cost: test accuracy below the best arm. `--quick` judges a few families, in a minute.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from espalier_agent.policies.policy import Policy, open_policy
from espalier_agent.policies.tree_features import STATIC, RequestFacts, static_features
from espalier_core.types.advice import Action
from espalier_core.types.outcomes import CaseRecord, MomentRecord
from espalier_lab.growth.corpus.families import Families
from espalier_lab.growth.judge.case import CaseFile, JudgeCase
from espalier_lab.growth.judge.deciding import Setting
from espalier_lab.growth.judge.judging import JudgeSettings
from espalier_lab.growth.judge.running import cores
from espalier_lab.growth.judge.trialling import RACE_GPUS, proposal, race_winner
from espalier_lab.growth.judge.verdict import JudgeVerdict, Rule, decisions_of, judged
from espalier_lab.growth.progress_line import ProgressLine

MODELS = Path(__file__).with_name("unseen_models.py")
QUICK = 5
"""Families of the quick form."""
DRAWN = (("image", 12), ("tokens", 8), ("table", 6), ("signal", 8))
"""Families of `--drawn`, by kind of input."""
BARS = (
    ("advice", 0.6, "before delay"),
    ("race", 0.6, "with four extra GPUs"),
    ("confirm", 0.75, "with the delay of one extra GPU"),
)
HARM_BAR = 0.15
_MIXES_FIRST = STATIC.index("first that mixes places")


@dataclass(frozen=True)
class Part:
    """Some of the cases: those of cheap, different families."""

    count: int | None
    """How many; None: all."""

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Make them."""
        cases = CaseFile(str(MODELS))()
        if self.count is None:
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


@click.command()
@click.option("--quick", is_flag=True, help="A few families, one seed.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--most", type=click.IntRange(min=1), default=3, show_default=True, help="Growths tried of each model.")
@click.option(
    "--trials/--no-trials",
    default=True,
    show_default=True,
    help="Also judge Confirm, whose late growths are trained in addition to the arms.",
)
@click.option("--drawn", type=int, metavar="SEED", help="Judge 34 other families, which this seed draws.")
@click.option("--policy", "others", multiple=True, type=click.Path(path_type=Path), help="Another policy. Repeatable.")
@click.option("--work-dir", type=click.Path(path_type=Path), default=Path("runs/unseen"), show_default=True)
@click.option("--parallel", type=click.IntRange(min=1), help="[default: the number of cores]")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False))
def main(
    quick: bool,
    seeds: int,
    most: int,
    trials: bool,
    drawn: int | None,
    others: tuple[Path, ...],
    work_dir: Path,
    parallel: int | None,
    picture: Path | None,
) -> None:
    """Judge the shipped policy on families that it has not met."""
    if quick and drawn is not None:
        raise click.UsageError("--quick judges some families of the fixed list; leave it out with --drawn")
    part = Part(QUICK if quick else None) if drawn is None else Drawn(drawn)
    judgement = JudgeSettings(part, part(), 1 if quick else seeds, Setting(most=most), work_dir, parallel or cores())
    records, tried = judgement.records(ProgressLine("trainings"), trials=trials)
    rules: dict[str, Rule] = {"mixes first": mixing}
    rules["race, one GPU"] = raced_by(open_policy(None), 1)
    if not trials:
        rules["advice"] = advised_by(open_policy(None))
        rules["race"] = raced_by(open_policy(None), RACE_GPUS)
    for folder in others:
        policy = open_policy(folder)
        rules[folder.name] = advised_by(policy)
    verdict = judged(decisions_of(records, tried, rules))
    show(verdict)
    if picture is not None:
        from espalier_lab.growth.judge.picture import draw

        draw(verdict, picture)
    if quick and verdict.regret["advice"] > max(verdict.regret["none"], verdict.regret["first"]):
        sys.exit("the advice is worse than both never and always growing")


def show(verdict: JudgeVerdict) -> None:
    """Print the table, and whether the bars are reached."""
    print(f"{verdict.cases} cases of {verdict.families} families, {len(verdict.decisions)} decisions")
    print(f"{'advisor':<14} {'regret':>7} {'95 %':>16} {'worse than none':>16}")
    for name, regret in verdict.regret.items():
        low, high = verdict.interval[name]
        print(f"{name:<14} {regret:>7.4f} {low:>7.4f} to {high:.4f} {verdict.worse[name]:>15.0%}")
    for (name, simple), (mean, low, high) in verdict.paired.items():
        print(f"{name} - {simple}: {mean:+.4f} ({low:+.4f} to {high:+.4f})")
    simple = min(verdict.regret["none"], verdict.regret["first"])
    for name, bar, when in BARS:
        if name in verdict.regret and simple > 0:
            share, harm = verdict.regret[name] / simple, verdict.worse[name]
            reached = "reached" if share <= bar and harm <= HARM_BAR else "missed"
            print(f"{name}, {when}: {share:.0%} of the better simple rule (bar {bar:.0%}), harm {harm:.0%}: {reached}")


if __name__ == "__main__":
    main()
