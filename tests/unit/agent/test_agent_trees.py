"""Trees: what they read, that they are evaluated right, and what they learn from a corpus."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bodies import ask
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional

from bench.unseen_language import RootMean
from espalier_agent.commands.agent import agent
from espalier_agent.data import carried_corpus, carried_tables, named_architecture
from espalier_agent.learners.learning import LEARNERS, LearningError
from espalier_agent.learners.trees import LEARNER
from espalier_agent.policies.advice import advise, decide
from espalier_agent.policies.familiarity import Domain
from espalier_agent.policies.policy import Policy, default_policy, load_policy, save_policy
from espalier_agent.policies.tree_ensemble import NODES, Trees, TreesNetwork, squashed
from espalier_agent.policies.tree_features import FEATURES, OF_SIZE, STATIC, UNKNOWN, RequestFacts, static_features
from espalier_core.files.documents import DocumentError
from espalier_core.growth.architecture import AttributeValue
from espalier_core.types.advice import Action, CurvePoint, Progress, offered
from espalier_core.types.job import Insertion
from espalier_core.types.outcomes import (
    ArmRecord,
    CaseRecord,
    GrowthCorpus,
    InsertedRecord,
    MomentRecord,
    read_corpus,
    write_corpus,
)
from espalier_core.types.task import Task
from espalier_trainer.models.gpt import GPT
from espalier_trainer.net2net.description import describe
from own_layers import Transposed

MODELS = {name: named_architecture(name) for name in ("cnn1", "cnn2")}
PLACES = {"block0.0": 900, "block1.0": 169}


def record(family: int, seed: int) -> CaseRecord:
    """Return a case where the first growth gains early, and the last always harms."""
    model = MODELS["cnn1" if family % 2 else "cnn2"]
    chance = np.random.default_rng([family, seed])

    def moment(share: float) -> MomentRecord:
        gains = [0.0, 0.06 if share < 0.5 else -0.05, -0.02, -0.06]
        actions = (Action.nothing(), *offered(model))
        arms = tuple(
            ArmRecord(action=action, accuracy=0.5 + gain + float(chance.normal(0, 0.003)), step_cost=1.0)
            for action, gain in zip(actions, gains, strict=True)
        )
        return MomentRecord(share=share, validation_accuracy=0.4, validation_loss=1.5, train_loss=1.4, arms=arms)

    return CaseRecord(
        case=f"case{family}",
        family=f"family{family}",
        seed=seed,
        steps=100,
        batch_size=32,
        architecture=model,
        places=PLACES,
        moments=(moment(0.2), moment(0.7)),
    )


CORPUS = GrowthCorpus(
    name="made", source="test", cases=tuple(record(family, seed) for family in range(12) for seed in (0, 1))
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return LEARNER.with_corpora([CORPUS]).learn([], seed=3, name="trees")


def test_it_says_where_and_when_and_how_sure_it_is(policy: Policy) -> None:
    case = record(50, 0)
    early, late = (case.request(moment) for moment in case.moments)
    first, *_ = offered(early.architecture)
    answer = advise(policy, early, "one")
    assert answer.action == first
    gains = {entry.action: entry.gain for entry in answer.probabilities}
    found = gains[first]
    assert found.low <= found.mean <= found.high
    assert found.mean > 0.02
    assert gains[Action.nothing()] is None
    assert decide(policy, late).action == Action.nothing()


def test_the_same_corpus_and_seed_give_the_same_policy_and_files_keep_it(policy: Policy, tmp_path: Path) -> None:
    again = LEARNER.with_corpora([CORPUS]).learn([], seed=3, name="trees")
    assert again.identity == policy.identity
    save_policy(policy, tmp_path / "p")
    read = load_policy(tmp_path / "p")
    assert read.identity == policy.identity
    request = record(50, 0).request(record(50, 0).moments[0])
    assert decide(read, request) == decide(policy, request)
    other = LEARNER.with_corpora([CORPUS]).learn([], seed=4, name="trees")
    assert other.version != policy.version


def test_trees_are_followed_as_one_would_by_hand() -> None:
    network = TreesNetwork(LEARNER.learn(carried_tables("digits")[:1]).network.config)
    shape = network.get_buffer("feature").shape
    assert shape[1] == NODES
    network.get_buffer("feature")[0, 0] = 2
    network.get_buffer("threshold")[0, 0] = 0.5
    network.get_buffer("left")[0, 0], network.get_buffer("right")[0, 0] = 1, 2
    network.get_buffer("value")[0, 1], network.get_buffer("value")[0, 2] = -1, 1
    rows = np.zeros((3, len(STATIC) + 5), dtype=np.float32)
    rows[:, 2] = [0.4, 0.5, 0.6]
    assert Trees.of(network.arrays()).evaluated(rows)[0].tolist() == [-1, -1, 1]


MODEL = describe(GPT(32, 8, 16, 2, 1, 0.0), torch.zeros(2, 8, dtype=torch.long), Insertion.EXACT, ["AddBlock"])
ADD = Action(kind="AddBlock", target="blocks.0")
WAYS = {way: ADD.model_copy(update={"insertion": way}) for way in (Insertion.SCALED, Insertion.UNFOLD)}


def language_record(family: int, seed: int) -> CaseRecord:
    """Return a case whose blocks gain bits if the loss still falls, most if they unfold; else they do harm."""
    chance = np.random.default_rng([family, seed])
    falls = family % 2 == 0

    def arm(action: Action, bits: float) -> ArmRecord:
        noise = float(chance.normal(0, 0.002))
        return ArmRecord(action=action, accuracy=2 ** -(2.0 - bits + noise), step_cost=1.0)

    gains = (
        {Insertion.SCALED: 0.02, Insertion.UNFOLD: 0.2} if falls else {Insertion.SCALED: -0.2, Insertion.UNFOLD: -0.1}
    )
    moment = MomentRecord(
        share=0.4,
        validation_accuracy=0.25,
        validation_loss=1.5,
        arms=(arm(Action.nothing(), 0.0), arm(ADD, 0.0 if falls else -0.05)),
        inserted=tuple(InsertedRecord(insertion=way, arm=arm(ADD, bits)) for way, bits in gains.items()),
    )
    return CaseRecord(
        case=f"gpt{family}",
        family=f"gpt{family}",
        seed=seed,
        steps=1000,
        batch_size=8,
        task=Task.LANGUAGE_MODEL,
        architecture=MODEL,
        places={layer.name: 8 for layer in MODEL.layers if layer.parameters},
        curve=tuple(CurvePoint(share=share, validation_loss=1.5 + falls * (0.4 - share)) for share in (0.1, 0.2)),
        moments=(moment,),
    )


def test_it_says_how_blocks_of_a_language_model_are_inserted_and_what_that_gains_in_bits() -> None:
    records = tuple(language_record(family, seed) for family in range(24) for seed in (0, 1))
    corpus = GrowthCorpus(name="made", source="test", cases=(*CORPUS.cases, *records))
    learned = LEARNER.with_corpora([corpus]).learn([], config=LEARNER.recipe("language"), seed=3, name="language")
    for family in (50, 51):
        case = language_record(family, 0)
        request = case.request(case.moments[0])
        answer = advise(learned, request, "one")
        gains = {entry.action: entry.gain for entry in answer.probabilities}
        unfolds = gains[WAYS[Insertion.UNFOLD]]
        if family % 2:
            assert answer.action == Action.nothing()
            assert unfolds.mean < -0.05
        else:
            assert answer.action == WAYS[Insertion.UNFOLD]
            assert unfolds.mean == pytest.approx(0.2, abs=0.07)


def test_it_learns_from_tables_of_several_decisions() -> None:
    tables = carried_tables("digits")[:2]
    learnt = LEARNER.learn(tables, seed=1)
    assert {table.name for table in learnt.lineage.tables} == {table.name for table in tables}
    assert tables[0].architecture is not None
    assert decide(learnt, ask(tables[0].architecture, left=50)).action.grows


def test_without_scikit_learn_it_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    with pytest.raises(LearningError, match=r"scikit-learn.*espalier-agent\[trees\]"):
        LEARNER.with_corpora([CORPUS]).learn([], seed=3, name="trees")


def test_features_tell_costs_only_where_places_are_known() -> None:
    model = MODELS["cnn1"]
    slow = STATIC.index("slowdown")
    blind = static_features(model, RequestFacts())
    seen = static_features(model, RequestFacts(PLACES, 64))
    assert {row[slow] for row in blind.values()} == {UNKNOWN}
    assert all(row[slow] > 0 for row in seen.values())
    assert all(np.isfinite(row).all() for row in (*blind.values(), *seen.values()))
    first = [row[STATIC.index("first that mixes places")] for row in seen.values()]
    assert sum(first) == 1


def test_gains_are_squashed() -> None:
    assert squashed(0.03) == pytest.approx(math.tanh(1))
    assert squashed(-1) > -1.0001


def test_what_does_not_go_together() -> None:
    with pytest.raises(LearningError, match="no outcome table, no corpus"):
        LEARNER.learn([])
    with pytest.raises(LearningError, match="--learner trees learns it"):
        LEARNERS.load("expected").learn(carried_tables("digits")[:1], encoder="trees")
    with pytest.raises(LearningError, match="leave --encoder out"):
        LEARNER.learn(carried_tables("digits")[:1], encoder="graph")


def test_a_corpus_is_written_alike_and_damage_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "made.json.xz"
    write_corpus(CORPUS, file)
    before = file.read_bytes()
    assert read_corpus(file) == CORPUS
    write_corpus(CORPUS, file)
    assert file.read_bytes() == before
    file.write_bytes(before[: len(before) // 2])
    with pytest.raises(DocumentError, match="damaged"):
        read_corpus(file)
    file.write_bytes(b"no corpus")
    with pytest.raises(DocumentError, match="is not a corpus"):
        read_corpus(file)
    with pytest.raises(DocumentError, match="cannot be read"):
        read_corpus(tmp_path / "nowhere")


def test_the_command_learns_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "made.json.xz"
    write_corpus(CORPUS, file)
    command = ["learn", "--learner", "trees", "--corpus", str(file), "--outcomes", "digits", "--output"]
    result = CliRunner().invoke(agent, [*command, str(tmp_path / "p")])
    assert result.exit_code == 0, result.output
    assert isinstance(load_policy(tmp_path / "p").network, TreesNetwork)
    wrong = CliRunner().invoke(agent, ["learn", "--corpus", str(file), "--output", str(tmp_path / "q")])
    assert wrong.exit_code == 2
    assert "trees and graph-gains do" in wrong.output


def test_the_network_reads_several_models_at_once(policy: Policy) -> None:
    both = policy.network.prepare(list(MODELS.values()), policy.vocabulary)
    times = torch.tensor([80.0, 80.0], dtype=torch.float64), torch.tensor([100.0, 100.0], dtype=torch.float64)
    together = policy.network.logits(both, torch.tensor([0, 1]), *times)
    for place, model in enumerate(MODELS.values()):
        one = policy.network.prepare([model], policy.vocabulary)
        alone = policy.network.logits(one, torch.tensor([0]), times[0][:1], times[1][:1])
        assert torch.allclose(alone[0], together[place])


@pytest.mark.parametrize("width", [-5, 10**400, 0, True, "x", (1, 2), None])
def test_any_width_of_an_inserted_layer_is_read(policy: Policy, width: AttributeValue) -> None:
    model = MODELS["cnn1"]
    odd = [
        point.model_copy(
            update={
                "insertion": tuple(
                    layer.model_copy(update={"attributes": {**layer.attributes, "out_channels": width}})
                    for layer in point.insertion
                )
            }
        )
        for point in model.growth_points
    ]
    architecture = model.model_copy(update={"growth_points": tuple(odd)})
    gains = [entry.gain for entry in advise(policy, ask(architecture), "a").probabilities[:-1]]
    assert gains
    assert all(gain is not None and math.isfinite(gain.mean) for gain in gains)


def test_the_shipped_policy_answers_by_trees_for_models_that_it_has_never_met() -> None:
    shipped = default_policy()
    met = ask(MODELS["cnn1"], left=50)
    assert advise(shipped, met, "a").policy == shipped.identity
    assert advise(shipped, met, "a").familiarity is None
    layers = tuple(
        layer.model_copy(update={"attributes": {**layer.attributes, "out_features": 77}})
        if layer.operator == "Linear"
        else layer
        for layer in met.architecture.layers
    )
    stranger = met.model_copy(
        update={
            "architecture": met.architecture.model_copy(update={"layers": layers}),
            "progress": Progress(step=10**6),
        }
    )
    answer = advise(shipped, stranger, "b")
    assert answer.familiarity.outside[-1].startswith("steps left 1,000,000 ")
    assert shipped.parts
    assert shipped.parts[0].lineage.domain is not None
    assert answer.policy == shipped.parts[0].identity


@pytest.fixture(scope="module")
def corpora() -> dict[str, GrowthCorpus]:
    return {name: carried_corpus(name) for name in ("growth", "free")}


@pytest.mark.parametrize(
    ("part", "recipe", "names", "sets"),
    [
        (0, "default", ("growth", "free"), ("lamelas", "digits", "cifar8")),
        (1, "language", ("language", "language-long", "language-longest"), ()),
    ],
)
def test_the_carried_trees_are_what_their_command_makes(
    part: int, recipe: str, names: tuple[str, ...], sets: tuple[str, ...]
) -> None:
    carried = default_policy().parts[part]
    tables = [table for name in sets for table in carried_tables(name)]
    learner = LEARNER.with_corpora([carried_corpus(name) for name in names])
    again = learner.learn(tables, config=LEARNER.recipe(recipe), seed=0, name=carried.name)
    assert again.lineage == carried.lineage
    for name, values in carried.network.state_dict().items():
        assert torch.allclose(values, again.network.state_dict()[name], atol=1e-5), name


def test_the_shipped_policy_answers_for_language_models_by_trees_of_their_own_and_unfolds() -> None:
    shipped = default_policy()
    records = [record for record in carried_corpus("language-long").cases if record.moments]
    requests = [request for record in records if (request := record.request(record.moments[0])) is not None]
    answers = [advise(shipped, request, "a") for request in requests]
    assert {answer.policy for answer in answers} == {shipped.parts[1].identity}
    assert all(answer.familiarity is not None and answer.familiarity.known for answer in answers)
    assert Insertion.UNFOLD in {answer.action.insertion for answer in answers}
    read = {FEATURES[int(place)] for place in shipped.parts[1].network.get_buffer("feature").unique() if place >= 0}
    assert len(read) > 15
    assert not read & {*OF_SIZE}


def test_trees_for_language_models_refuse_tables_of_classifications() -> None:
    learner = LEARNER.with_corpora([carried_corpus("language")])
    with pytest.raises(LearningError, match="of classifications, not of LanguageModel; add --without-tables"):
        learner.learn(carried_tables("digits"), config=LEARNER.recipe("language"), seed=0)


def test_widening_is_learnt_apart(corpora: dict[str, GrowthCorpus]) -> None:
    """What is known of widening changes nothing in what is expected of added layers."""
    records = [one for one in corpora["free"].cases if one.seed == 0 and not one.grown and one.moments][:12]
    adding = [one.without("Widen") for one in records]
    both, apart = (
        LEARNER.with_corpora([GrowthCorpus(name="part", source="test", cases=tuple(cases))]).learn([], seed=2)
        for cases in (records, adding)
    )
    request = records[0].request(records[0].moments[0])
    known, without = (
        {entry.action: entry.gain for entry in advise(one, request, "a").probabilities if entry.action.grows}
        for one in (both, apart)
    )
    widening = {action for action in known if action.kind == "Widen"}
    assert widening
    assert all(known[action] is not None for action in widening)
    for action, gain in known.items():
        assert without[action] == (None if action in widening else gain)


def test_the_shipped_policy_widens_where_that_gains_most(corpora: dict[str, GrowthCorpus]) -> None:
    shipped = default_policy().parts[0]
    kinds = {
        decide(shipped, request).action.kind
        for record in corpora["growth"].cases[:60]
        for moment in record.moments[:1]
        if (request := record.request(moment)) is not None
    }
    assert kinds >= {"Deepen", "Widen", "Nothing"}


class Block(nn.Module):
    """Adds an MLP to what it reads."""

    def __init__(self, layer: Callable[[int, int], nn.Module], norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm, self.expand, self.project = norm(8), layer(8, 16), layer(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(functional.gelu(self.expand(self.norm(x))))


def test_layers_and_norms_that_are_written_by_hand_are_read_as_those_of_torch() -> None:
    """All but the operations that they are made of: their number is in the costs, and in places along the path."""
    rows = []
    for layer, norm in ((nn.Linear, nn.RMSNorm), (Transposed, RootMean)):
        model = nn.Sequential(nn.Embedding(10, 8), Block(layer, norm), Block(layer, norm), nn.Linear(8, 10))
        described = describe(model, torch.zeros(1, 4, dtype=torch.long), operations=["AddBlock"])
        found = static_features(described, RequestFacts())
        rows.append({str(action): row for action, row in found.items() if action.kind == "AddBlock"})
        domain = Domain.of(Task.CLASSIFICATION, [described], [])
    assert domain.sizes["layers"].most == 5
    assert rows[0].keys() == rows[1].keys() == {"AddBlock(1)", "AddBlock(1, Scaled)", "AddBlock(1, Unfold)"}
    for name, row in rows[0].items():
        apart = {STATIC[place] for place in np.flatnonzero(row[: len(STATIC)] != rows[1][name][: len(STATIC)])}
        assert apart <= {"place along the longest path"}
