"""Points at which whole blocks can be added to a model, and the reason for each run of blocks that has none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from espalier_core.growth.architecture import BlockPoint, GrowthError
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.block.insertion import SCALE, BlockPlace, BlockRun, add_blocks, candidates
from espalier_trainer.net2net.block.projections import MARK, Closing, NotClosedError, closing
from espalier_trainer.net2net.block.trial import block_point, check_layers, misfits, not_identities, with_choice
from espalier_trainer.net2net.block.unfolding import check_recomputing, fold, unfold
from espalier_trainer.net2net.blocks import base_class
from espalier_trainer.net2net.gradients import severed, why_severed
from espalier_trainer.net2net.modules import ExampleInput, copied, once
from espalier_trainer.net2net.refusals import Refusal, RefusalReason, forward_of, place_of
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import Traces, trace, traces
from espalier_trainer.net2net.widening.trial import PerturbedModel


@dataclass(frozen=True)
class BlockPlaces:
    """The runs of a model that can be continued, in execution order, and refusals of the others."""

    found: tuple[BlockPlace, ...]
    refused: tuple[Refusal, ...]

    def get(self, point_id: str) -> BlockPlace:
        """Return the place with this id; raise `GrowthError` with the refusal's reason, or with the known ids."""
        for place in self.found:
            if place.id == point_id:
                return place
        for one in self.refused:
            if one.layer == point_id:
                raise GrowthError(f"no block can be added to {point_id!r}: {one.reason}; {one.remedy}")
        known = ", ".join(place.id for place in self.found) or "none"
        raise GrowthError(f"{point_id!r} is not a run of blocks of this model; its runs: {known}")


def block_points(
    model: nn.Module, example_input: ExampleInput, insertion: Insertion = Insertion.EXACT
) -> list[BlockPoint]:
    """Return the runs of equal residual blocks that `add_block` can continue, in execution order. Each was tried.

    A run's id is the path of its first block, which does not change while the model grows. Raises `GrowthError` if the
    model cannot be run on the example, or on random values like it.
    """
    whole = insertion.whole
    found = tried_places(model, trace(model, example_input), example_input, whole=whole).found
    return [block_point(place, whole=whole) for place in found]


def scalable_runs(model: nn.Module, example_input: ExampleInput) -> frozenset[str]:
    """Return the ids of the runs that can be copied whole; none if the model cannot be run on the example."""
    try:
        return frozenset(point.id for point in block_points(model, example_input, Insertion.SCALED))
    except GrowthError:
        return frozenset()


def refused_blocks(
    model: nn.Module, example_input: ExampleInput, insertion: Insertion = Insertion.EXACT
) -> tuple[Refusal, ...]:
    """Return the refusals of other runs: runs of several blocks, and single modules that look like a block."""
    return tried_places(model, trace(model, example_input), example_input, whole=insertion.whole).refused


def tried_places(model: nn.Module, graph: Graph, example_input: ExampleInput, *, whole: bool = False) -> BlockPlaces:
    """Return the places of `model` that pass the trials; `graph` is its trace on the example.

    Raises `GrowthError` if the model cannot be run on random values.
    """
    return once(model, example_input, ("blocks", whole), lambda: _tried(model, graph, example_input, whole=whole))


def _tried(model: nn.Module, graph: Graph, example_input: ExampleInput, *, whole: bool) -> BlockPlaces:
    both = Traces(graph, trace(model, example_input, training=False))
    with both.answering():
        return _tried_on(model, both, example_input, whole=whole)


def _tried_on(model: nn.Module, both: Traces, example_input: ExampleInput, *, whole: bool) -> BlockPlaces:
    graph = both.training
    places, choices, refused = _found(model, graph, example_input, whole=whole)
    failed = misfits(model, both, example_input, places, whole=whole)
    refused += [_refusal(model, place.run, why.reason) for place in places if (why := failed.get(place.id)) is not None]
    places = [place for place in places if place.id not in failed]
    if not whole and places:
        places, opened = _closed(model, example_input, places, choices)
        refused += [_refusal(model, place.run, RefusalReason(why, _REMEDY, "")) for place, why in opened]
    refused = _with_lists_of_parts(model, graph, places, refused)
    order = {name: number for number, name in enumerate(graph.operations)}
    return BlockPlaces(tuple(sorted(places, key=lambda place: order[place.gives[0]])), tuple(refused))


_REMEDY = "let each branch end in a linear layer, a convolution or a scale, with nothing after it but dropout"


_PARTS = RefusalReason(
    "the forward calls the parts of each element of its list, and not the element",
    "give the elements a forward, and call that in the loop, which keeps the names of the weights: `class Pair("
    "nn.ModuleList): def forward(self, x): attn, ff = self; x = attn(x) + x; return ff(x) + x` and `for pair in "
    "self.layers: x = pair(x)`; for a model of a library, see 'Lists of pairs' in docs/reference/growth.md",
    "",
)


def _with_lists_of_parts(
    model: nn.Module, graph: Graph, places: list[BlockPlace], refused: list[Refusal]
) -> list[Refusal]:
    """Merge refusals of parts into one per list where the forward calls the parts of elements, not the elements.

    `for attn, ff in self.layers`: the refusal of the list replaces those of the parts and of the modules around it.
    """
    for run in {one.container: one for one in reversed([*candidates(model)]) if one.listed}.values():
        if run.id in graph.calls or not any(path.startswith(f"{run.id}.") for path in graph.calls):
            continue
        refused = [one for one in refused if one.layer != run.id]
        if not any(_within(place.id, run.container) for place in places):
            far = [one for one in refused if not _within(one.layer, run.container)]
            refused = [one for one in far if not _within(run.container, one.layer)]
            refused.append(_refusal(model, run, _PARTS))
    return refused


def untried_places(
    model: nn.Module, graph: Graph, example_input: ExampleInput, *, whole: bool = False
) -> list[BlockPlace]:
    """Return the places of `model` before any trial."""
    return _found(model, graph, example_input, whole=whole)[0]


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def add_block(
    model: nn.Module, point_id: str, example_input: ExampleInput, insertion: Insertion = Insertion.EXACT
) -> nn.Module:
    """Return a copy of `model` with one more block in a run; `model` itself is not changed.

    The new block is a copy of the run's last one with its last projections at zero: the model computes the same, bit
    for bit, in eval and in train mode. With `Insertion.SCALED` the whole run is copied, and the last projections of all
    its blocks are halved: the outputs change, and the loss jumps and recovers. With `Insertion.UNFOLD` the run reaches
    that state during training; at first it computes the same up to rounding, in eval mode and, without dropout, in
    train mode. Growing a run ends its unfolding by an earlier growth.

    Raises `GrowthError` with the reason if the id is not a run of blocks, if the block is not exact, or for
    `Insertion.UNFOLD` if gradient checkpointing computes blocks of the run again one by one.
    """
    both = traces(model, example_input)
    with both.answering():
        return _with_block(model, both, point_id, example_input, insertion)


def _with_block(
    model: nn.Module, both: Traces, point_id: str, example_input: ExampleInput, insertion: Insertion
) -> nn.Module:
    whole, unfolding = insertion.whole, insertion is Insertion.UNFOLD
    places, choices, refused = _found(model, both.training, example_input, whole=whole)
    asked = [place for place in places if place.id == point_id]
    refused = _with_lists_of_parts(model, both.training, asked, refused)
    place = BlockPlaces(tuple(places), tuple(refused)).get(point_id)
    why = ""
    for choice in (place.closing[-1],) if whole else choices[place.id]:
        place = place if whole else with_choice(place, choice)
        grown = copied(model)
        fold(grown, place.run.blocks)
        new = add_blocks(grown, place, whole=whole, scale=1.0 if unfolding else SCALE)
        if unfolding:
            unfold(grown, place, new)
        check_layers(grown, both, example_input, [place], whole=whole)
        if unfolding:
            check_recomputing(grown, example_input)
        problems = {} if whole else not_identities(copied(grown), dict.fromkeys(new, place.entry), example_input)
        if not problems:
            return grown
        why = next(iter(problems.values()))
    raise GrowthError(f"no block can be added to {point_id!r}: {why}; {_REMEDY}")


def _closed(
    model: nn.Module,
    example_input: ExampleInput,
    places: list[BlockPlace],
    choices: dict[str, tuple[frozenset[str], ...]],
) -> tuple[list[BlockPlace], list[tuple[BlockPlace, str]]]:
    """Return the places closed on values, each by the first choice that closes it, and the others with the reasons."""
    # In the model's own type: a residual always kept in float32 rounds float64 values.
    own = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
    perturbed = PerturbedModel.of(model, example_input, (own, torch.float64, torch.float32))
    arguments: ExampleInput = perturbed.kwargs if perturbed.kwargs else perturbed.args
    found: list[BlockPlace] = []
    problems: dict[str, str] = {}
    waiting, attempt = places, 0
    while waiting:
        trial = copied(perturbed.model)
        blocks = {path: place for place in waiting for path in add_blocks(trial, place, whole=False)}
        entries = {path: place.entry for path, place in blocks.items()}
        failed = {blocks[path].id: why for path, why in not_identities(trial, entries, arguments).items()}
        found += [place for place in waiting if place.id not in failed]
        problems |= failed
        attempt += 1
        waiting = [
            with_choice(place, choices[place.id][attempt])
            for place in waiting
            if place.id in failed and attempt < len(choices[place.id])
        ]
    closed = {place.id for place in found}
    return found, [(place, problems[place.id]) for place in places if place.id not in closed]


def _found(
    model: nn.Module, graph: Graph, example_input: ExampleInput, *, whole: bool
) -> tuple[list[BlockPlace], dict[str, tuple[frozenset[str], ...]], list[Refusal]]:
    """Return the places before any trial, the choices that may close their blocks, and the refusals."""
    tried: list[tuple[BlockRun, tuple[BlockPlace, tuple[frozenset[str], ...]] | NotClosedError]] = []
    cut_off = severed(model, graph, example_input)
    for run in candidates(model):
        try:
            place = _place(model, graph, run, whole=whole)
            if run.blocks[-1] in cut_off:
                why = why_severed(graph, run.blocks[-1])
                raise NotClosedError(why.text, why.remedy, is_block=True, at=why.at)
            tried.append((run, place))
        except NotClosedError as reason:
            tried.append((run, reason))
    blocks = [run for run, found in tried if not isinstance(found, NotClosedError) or found.is_block]
    # Of nested blocks, the inner ones are taken if there are several: then the outer one is a stage.
    stages = {
        run.id
        for run in blocks
        for inner in blocks
        if inner is not run and len(inner.keys) - inner.grown > 1 and any(_within(inner.id, one) for one in run.blocks)
    }
    units = [block for run in blocks if run.id not in stages for block in run.blocks]
    places: list[BlockPlace] = []
    choices: dict[str, tuple[frozenset[str], ...]] = {}
    refused: list[Refusal] = []
    for run, found in tried:
        if run.id in stages or any(_within(run.id, block) for block in units if block not in run.blocks):
            continue
        if not isinstance(found, NotClosedError):
            places.append(found[0])
            choices[run.id] = found[1]
        elif (run.listed or hasattr(model.get_submodule(run.id), MARK)) and (
            len(run.keys) > 1 or found.is_block or _may_be_residual(model, graph, run)
        ):
            refused.append(_refusal(model, run, RefusalReason(str(found), found.remedy, found.at)))
    return places, choices, refused


def _place(
    model: nn.Module, graph: Graph, run: BlockRun, *, whole: bool
) -> tuple[BlockPlace, tuple[frozenset[str], ...]]:
    blocks = run.blocks if whole else run.blocks[-1:]
    spans = {block: graph.spans.get(block, ()) for block in blocks}
    if not all(spans.values()):
        raise NotClosedError(
            "it is not called by itself in the model's forward",
            "call each block of the list: `for block in self.blocks: x = block(x)`",
        )
    closings: list[list[Closing]] = [[closing(model, graph, block, span) for span in spans[block]] for block in blocks]
    last = closings[-1]
    if run.indexed and not run.last:
        raise NotClosedError(
            "other modules come after it in its list, and a new block would change their names",
            "keep equal blocks in a separate list",
            is_block=True,
        )
    shared = next((why for block in blocks if (why := _shared(model, block))), None)
    if shared:
        raise NotClosedError(shared, "give each block its own", is_block=True)
    if last[0].norms and not whole:
        norm = last[0].norms[0]
        raise NotClosedError(
            f"its input passes the norm {norm!r} on the way to its output (post-norm), so no new block is exact",
            "put the norm before the branch (pre-norm, `norm_first=True`), or allow `insertion: Scaled`",
            is_block=True,
        )
    if len({len(one) for one in closings}) > 1 or any(one.choices != last[0].choices for one in last):
        raise NotClosedError(
            "its calls are not alike", "call each block of the list equally often, in one way", is_block=True
        )

    def own(choice: frozenset[str], block: str) -> frozenset[str]:
        return frozenset(name.removeprefix(f"{block}.") for name in choice)

    ways = tuple(own(choice, blocks[-1]) for choice in last[0].choices)
    place = BlockPlace(
        run=run,
        reads=tuple(one.read for one in last),
        gives=tuple(span.outputs[0] for span in spans[blocks[-1]]),
        first=tuple(one.read for one in closings[0]),
        entry=last[0].entry,
        closing=tuple(ways[0] for _ in run.keys),
        exact=not last[0].norms,
    )
    return place, ways


def _shared(model: nn.Module, block: str) -> str | None:
    """Return how a block shares a module or tensor with the rest of the model; None where it shares nothing."""
    module = model.get_submodule(block)
    inside = {id(one) for one in module.modules()}
    held = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    for path, other in model.named_modules(remove_duplicate=False):
        if _within(path, block) or _within(block, path):
            continue
        if id(other) in inside:
            return f"it shares the module {path!r} with another part of the model"
        for name, tensor in (*other._parameters.items(), *other._buffers.items()):
            if id(tensor) in held:
                return f"it shares {held[id(tensor)]!r} with {f'{path}.{name}'!r}"
    return None


def _may_be_residual(model: nn.Module, graph: Graph, run: BlockRun) -> bool:
    """Return whether a single block preserves the shape of its input, and computes more than a norm or one layer."""
    block = model.get_submodule(run.blocks[-1])
    if sum(parameter.dim() > 1 for parameter in block.parameters()) < 2:
        return False
    return any(
        span.inputs and span.outputs and span.inputs[0] and span.outputs[0]
        and graph.operations[span.inputs[0]].shape == graph.operations[span.outputs[0]].shape is not None
        for span in graph.spans.get(run.blocks[-1], ())
    )  # fmt: skip


def _within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


def _refusal(model: nn.Module, run: BlockRun, why: RefusalReason) -> Refusal:
    kind = base_class(model.get_submodule(run.id))
    file, line = place_of(why.at) or forward_of(model, run.id)
    return Refusal(run.id, f"{kind.__name__} {run.id!r}: {why.text}", file, line, why.remedy)
