"""What the trees know of families that they have not met: the carried corpora, without a fifth of the families in turn.

Unlike `advice_unseen`, no model is trained here: trials are judged by the losses of arms that are stored. First
decisions and second ones are judged apart, with widening and without. `--graph` compares a graph network with the
trees, learned from the same families, and both together. `--language` judges trees for language models on their own,
beside the first block that unfolds and what the shipped policy for classifiers makes of trials.

Takes 2 minutes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from bench.cases.advice_unseen import advised_by, first_block, mixing, verdicts
from bench.command import Option
from bench.printing import Parts, Table
from espalier_agent.data import carried_corpus, carried_tables, table_sets
from espalier_agent.learners import trees
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy, open_policy
from espalier_core.growth.widen import WIDEN
from espalier_core.types.adaptation import Trials
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_core.types.outcomes import CaseRecord, GrowthCorpus, MomentRecord
from espalier_lab.growth.judge.trialling import RACE_GPUS, Proposal, decided_by, proposal
from espalier_lab.growth.judge.verdict import Rule, decisions_of, judged
from espalier_lab.learners import graph_gains

CORPORA = ("free", "growth")
LANGUAGE = ("language", "language-long", "language-longest")
FOLDS = 5
RIVALS = ("none", "first block, Unfold", "classifiers' Auto, 1 GPU")
GPUS = (1, RACE_GPUS)
"""Extra GPUs for trials."""
TINY = 1e-300
OPTIONS = {
    "seed": Option(0, "of the folds, and of the trees"),
    "graph": Option(False, "also judge a graph network (half as long again)"),
    "language": Option(False, "judge trees for language models"),
}


def learnt_without(
    corpora: list[GrowthCorpus], seed: int, learn: Callable[[list[GrowthCorpus]], list[Policy]]
) -> dict[str, list[Policy]]:
    """Return by family what is learned from the other families."""
    families, found = sorted({case.family for corpus in corpora for case in corpus.cases}), dict[str, list[Policy]]()
    random.Random(seed).shuffle(families)
    for fold in range(FOLDS):
        out = set(families[fold::FOLDS])
        rest = [
            corpus.model_copy(update={"cases": tuple(case for case in corpus.cases if case.family not in out)})
            for corpus in corpora
        ]
        found |= dict.fromkeys(out, learn(rest))
    return found


def together(policies: Sequence[Policy], record: CaseRecord, moment: MomentRecord) -> Action:
    """Return what has the highest mean of the policies' scores, which are logarithms of probabilities."""
    request = record.request(moment)
    if request is None:
        return Action.nothing()
    scores: dict[Action, float] = {}
    for policy in policies:
        for entry in decide(policy, request).probabilities:
            scores[entry.action] = scores.get(entry.action, 0.0) + math.log(max(entry.probability, TINY))
    return max(scores, key=lambda action: scores[action])


class Tries:
    """Rules that try what a policy advises, and the time of lent GPUs that each took."""

    def __init__(self, policy: Callable[[CaseRecord], Policy], before: str = "") -> None:
        self.lent: dict[str, list[float]] = defaultdict(list)
        self._policy, self._before = policy, before
        self._asked: dict[int, Proposal] = {}

    def rules(self) -> dict[str, Rule]:
        """Return the rules by name."""
        found = {}
        for mode, gpus in itertools.product((Trials.CONFIRM, Trials.RACE, Trials.AUTO), GPUS):
            name = f"{self._before}{mode}, {gpus} GPU{'s' * (gpus > 1)}"
            found[name] = self._rule(name, mode, gpus)
        return found

    def _rule(self, name: str, mode: Trials, gpus: int) -> Rule:
        def rule(record: CaseRecord, moment: MomentRecord) -> float:
            if (asked := self._asked.get(id(moment))) is None:
                asked = self._asked[id(moment)] = proposal(self._policy(record), record, moment)
            found = decided_by(mode, asked, moment, gpus)
            self.lent[name].append((1 - moment.share) * found.lent)
            return found.accuracy(moment)

        return rule

    def table(self, what: str) -> Table:
        """Return what they lent."""
        rows = [[name, f"{statistics.fmean(found):.2f}"] for name, found in self.lent.items()]
        return Table(f"{what}GPU-time lent for trials", ["by", "budgets of one GPU, a decision"], rows)


def run(options: argparse.Namespace) -> Parts:
    """Judge trees on the families of the carried corpora that they have not met."""
    yield from (of_language_models if options.language else of_classifiers)(options)


def of_language_models(options: argparse.Namespace) -> Parts:
    """Judge trees for language models."""
    corpora = [carried_corpus(name) for name in LANGUAGE]
    recipe = trees.LEARNER.recipe("language")
    learnt = learnt_without(
        corpora,
        options.seed,
        lambda rest: [trees.LEARNER.with_corpora(rest).learn([], config=recipe, seed=options.seed)],
    )
    classifiers = open_policy(None).parts[0]
    ours, others = Tries(lambda record: learnt[record.family][0]), Tries(lambda _: classifiers, "classifiers' ")
    rules: dict[str, Rule] = {
        "first block, Unfold": first_block(Insertion.UNFOLD),
        "advice": lambda record, moment: advised_by(learnt[record.family][0])(record, moment),
    }
    rules |= ours.rules() | others.rules()
    for grown in (False, True):
        what = f"{'second' if grown else 'first'} decisions: "
        records = [case for corpus in corpora for case in corpus.cases if bool(case.grown) == grown]
        ours.lent.clear()
        yield from verdicts(judged(decisions_of(records, [], rules), RIVALS), what, bars=())
        yield ours.table(what)


def of_classifiers(options: argparse.Namespace) -> Parts:
    """Judge trees for classifiers."""
    corpora = [carried_corpus(name) for name in CORPORA]
    tables = [table for name in table_sets() for table in carried_tables(name)]
    learners = [trees.LEARNER, *([graph_gains.LEARNER] if options.graph else [])]
    policies = learnt_without(
        corpora,
        options.seed,
        lambda rest: [learner.with_corpora(rest).learn(tables, seed=options.seed) for learner in learners],
    )
    for grown in (False, True):
        records = [case for corpus in corpora for case in corpus.cases if bool(case.grown) == grown and case.moments]
        for widening in (False, True):
            what = f"{'second' if grown else 'first'} decisions, {'with' if widening else 'without'} widening: "
            judged_ones = records if widening else [record.without(WIDEN.name) for record in records]
            tries = Tries(lambda record: policies[record.family][0])
            rules: dict[str, Rule] = {
                "advice": lambda record, moment: advised_by(policies[record.family][0])(record, moment),
                "mixes first": mixing,
            }
            rules |= tries.rules()
            if options.graph:
                rules["graph"] = lambda record, moment: advised_by(policies[record.family][1])(record, moment)
                rules["both"] = lambda record, moment: together(policies[record.family], record, moment)
            yield from verdicts(judged(decisions_of(judged_ones, [], rules)), what)
            yield tries.table(what)
