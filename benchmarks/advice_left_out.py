"""What the trees know of families that they have not met: the carried corpora, without a fifth of the families in turn.

Unlike `advice_unseen`, nothing is trained here. First decisions and second ones are judged apart, with widening and
without.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import click
from advice_unseen import advised_by, mixing, show

from espalier_agent.data import carried_corpus, carried_tables, corpus_names, table_sets
from espalier_agent.learners.trees import LEARNER
from espalier_agent.policies.policy import Policy
from espalier_api.advice import Action
from espalier_api.growth.widen import WIDEN
from espalier_api.growth_corpus import CaseRecord, GrowthCorpus, MomentRecord
from espalier_cli.judge.verdict import decisions_of, judged

FOLDS = 5


def learnt_without(corpora: list[GrowthCorpus], seed: int) -> Iterator[tuple[str, Policy]]:
    """Yield each family with a policy that has not met it."""
    families = sorted({case.family for corpus in corpora for case in corpus.cases})
    random.Random(seed).shuffle(families)
    tables = [table for name in table_sets() for table in carried_tables(name)]
    for fold in range(FOLDS):
        out = set(families[fold::FOLDS])
        rest = [
            corpus.model_copy(update={"cases": tuple(case for case in corpus.cases if case.family not in out)})
            for corpus in corpora
        ]
        policy = LEARNER.with_corpora(rest).learn(tables, seed=seed)
        yield from ((family, policy) for family in out)


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="Of the folds, and of the trees.")
def main(seed: int) -> None:
    """Judge trees on the families of the carried corpora that they have not met."""
    corpora = [carried_corpus(name) for name in corpus_names()]
    policies = dict(learnt_without(corpora, seed))

    def advice(record: CaseRecord, moment: MomentRecord) -> Action:
        return advised_by(policies[record.family])(record, moment)

    for grown in (False, True):
        records = [case for corpus in corpora for case in corpus.cases if bool(case.grown) == grown and case.moments]
        for widening in (False, True):
            print(f"\n{'second' if grown else 'first'} decisions, {'with' if widening else 'without'} widening")
            judged_ones = records if widening else [record.without(WIDEN.name) for record in records]
            show(judged(decisions_of(judged_ones, [], {"advice": advice, "mixes first": mixing})))


if __name__ == "__main__":
    main()
