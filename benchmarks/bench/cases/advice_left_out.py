"""What the trees know of families that they have not met: the carried corpora, without a fifth of the families in turn.

Unlike `advice_unseen`, no model is trained here: trials are judged by the losses of arms that are stored. First
decisions and second ones are judged apart, with widening and without. `--graph` compares a graph network with the
trees, learned from the same families, and both together.

Takes 2 minutes.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from bench.cases.advice_unseen import advised_by, mixing, verdicts
from bench.command import Option
from bench.printing import Parts, Table
from espalier_agent.data import carried_corpus, carried_tables, table_sets
from espalier_agent.learners import trees
from espalier_agent.learners.growths import GrowthsLearner
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy
from espalier_core.growth.widen import WIDEN
from espalier_core.types.adaptation import Trials
from espalier_core.types.advice import Action
from espalier_core.types.outcomes import CaseRecord, GrowthCorpus, MomentRecord
from espalier_lab.growth.judge.trialling import RACE_GPUS, Proposal, decided_by, proposal
from espalier_lab.growth.judge.verdict import Rule, decisions_of, judged
from espalier_lab.learners import graph_gains

CORPORA = ("free", "growth")
FOLDS = 5
GPUS = (1, RACE_GPUS)
"""Extra GPUs for trials."""
TINY = 1e-300
OPTIONS = {
    "seed": Option(0, "of the folds, and of the trees"),
    "graph": Option(False, "also judge a graph network (half as long again)"),
}


def learnt_without(
    corpora: list[GrowthCorpus], seed: int, learners: Sequence[GrowthsLearner]
) -> Iterator[tuple[str, list[Policy]]]:
    """Yield each family with a policy of each learner that has not met it."""
    families = sorted({case.family for corpus in corpora for case in corpus.cases})
    random.Random(seed).shuffle(families)
    tables = [table for name in table_sets() for table in carried_tables(name)]
    for fold in range(FOLDS):
        out = set(families[fold::FOLDS])
        rest = [
            corpus.model_copy(update={"cases": tuple(case for case in corpus.cases if case.family not in out)})
            for corpus in corpora
        ]
        policies = [learner.with_corpora(rest).learn(tables, seed=seed) for learner in learners]
        yield from ((family, policies) for family in out)


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


def run(options: argparse.Namespace) -> Parts:
    """Judge trees on the families of the carried corpora that they have not met."""
    corpora = [carried_corpus(name) for name in CORPORA]
    learners = [trees.LEARNER, *([graph_gains.LEARNER] if options.graph else [])]
    policies = dict(learnt_without(corpora, options.seed, learners))
    proposals: dict[int, Proposal] = {}
    taken: dict[str, list[float]] = defaultdict(list)

    def tried(name: str, mode: Trials, gpus: int) -> Rule:
        def rule(record: CaseRecord, moment: MomentRecord) -> float:
            if (asked := proposals.get(id(moment))) is None:
                asked = proposals[id(moment)] = proposal(policies[record.family][0], record, moment)
            found = decided_by(mode, asked, moment, gpus)
            taken[name].append((1 - moment.share) * found.lent)
            return found.accuracy(moment)

        return rule

    rules: dict[str, Rule] = {
        "advice": lambda record, moment: advised_by(policies[record.family][0])(record, moment),
        "mixes first": mixing,
    }
    for mode in (Trials.CONFIRM, Trials.RACE, Trials.AUTO):
        for gpus in GPUS:
            name = f"{mode}, {gpus} GPU{'s' * (gpus > 1)}"
            rules[name] = tried(name, mode, gpus)
    if options.graph:
        rules["graph"] = lambda record, moment: advised_by(policies[record.family][1])(record, moment)
        rules["both"] = lambda record, moment: together(policies[record.family], record, moment)
    for grown in (False, True):
        records = [case for corpus in corpora for case in corpus.cases if bool(case.grown) == grown and case.moments]
        for widening in (False, True):
            what = f"{'second' if grown else 'first'} decisions, {'with' if widening else 'without'} widening: "
            judged_ones = records if widening else [record.without(WIDEN.name) for record in records]
            proposals.clear()
            taken.clear()
            yield from verdicts(judged(decisions_of(judged_ones, [], rules)), what)
            rows = [[name, f"{statistics.fmean(found):.2f}"] for name, found in taken.items()]
            yield Table(f"{what}GPU-time lent for trials", ["by", "budgets of one GPU, a decision"], rows)
