"""The card of an exported model, for people: its quality, growth, data set and command. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from espalier_core.types.report import Adaptation, AdaptationResult
from espalier_core.types.result import RunResult
from espalier_trainer.checkpoints.document import CheckpointState
from espalier_trainer.checkpoints.examples import Example, ExampleShape
from espalier_trainer.exporting.loading import CONFIG, WEIGHTS, ExportedModel
from espalier_trainer.exporting.program import PROGRAM, Program

_UNKNOWN = "not known: the script of the run loads its own"


def card(
    config: ExportedModel,
    state: CheckpointState,
    result: RunResult | None,
    *,
    folder: str,
    dataset: str,
    size: str,
    program: Program | None = None,
    job: bool = False,
) -> str:
    """Return the Markdown text of `README.md` in `folder`.

    `size` is the model's, in words. `result` is None if the run has not ended. `program` describes `model.pt2`; None
    without one. `job`: whether the folder has the job's file.
    """
    name = state.identity.job.rpartition("/")[2]
    return "\n".join(
        [
            f"# {name}",
            "",
            f"A model of {size}, trained by Espalier {_how(state, result)}.",
            "",
            "## Load it",
            "",
            "```python",
            snippet(config, folder),
            "```",
            "",
            f"`load` needs the package `espalier-trainer`{_code(config)}. It builds the starting model, repeats the "
            f"growth in `{CONFIG}`, and loads `{WEIGHTS}`. The model is in eval mode, on the CPU.",
            *(["", "The weights are the average that the script has kept in training."] if config.average else []),
            "",
            *([] if program is None else _program(config, folder, program)),
            "## How good it is",
            "",
            *_table(("metric", "value"), _metrics(state, result)),
            "",
            "## How it was trained",
            "",
            f"- data set: {dataset or _UNKNOWN}",
            f"- {state.epoch:,} epochs, {state.step:,} optimizer steps, batch size {state.identity.batch_size}, "
            f"optimizer {state.identity.optimizer}, seed {state.identity.seed}",
            f"- {_budget(state, result)}",
            "",
            *(["`job.yaml` is the job."] if job else []),
            *(["", "```console", f"$ {result.command}", "```"] if result is not None and result.command else []),
            "",
            "## How it grew",
            "",
            *_growth([each for each in state.adaptations if each.result is AdaptationResult.GROWN]),
            "",
        ]
    )


def snippet(config: ExportedModel, folder: str) -> str:
    """Return the Python code that loads the model from `folder` and runs it."""
    start = "" if config.model is not None else ", model=net()"
    lines = [f'model = espalier_trainer.load("{folder}"{start})']
    if start:
        lines[0] += "  # net: what your script calls to make its starting model"
    if config.example is None:
        return "\n".join(["import espalier_trainer", "", *lines])
    used = [*lines, f"outputs = model({_example(config.example)})"]
    return "\n".join(["import torch", "", "import espalier_trainer", "", *used])


def _example(example: Example) -> str:
    """Return the arguments of a call of the model, as Python code."""
    if isinstance(example, ExampleShape):
        return _tensor(example)
    given = example.put(
        [_Written(_tensor(each) if isinstance(each, ExampleShape) else repr(each.value)) for each in example.leaves]
    )
    if isinstance(given, Mapping):
        return ", ".join(f"{name}={value!r}" for name, value in given.items())
    return ", ".join(map(repr, given))


def _tensor(shape: ExampleShape) -> str:
    numbers = ", ".join(map(str, shape.shape)) or "()"
    if "float" in shape.dtype:
        return (
            f"torch.rand({numbers})"
            if shape.dtype == "float32"
            else f"torch.rand({numbers}, dtype=torch.{shape.dtype})"
        )
    if not shape.fill:
        return f"torch.zeros({numbers}, dtype=torch.{shape.dtype})"
    return f"torch.full({shape.shape}, {shape.fill}, dtype=torch.{shape.dtype})"


class _Written(str):
    """Python code of a leaf, which represents itself inside a container."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _program(config: ExportedModel, folder: str, program: Program) -> list[str]:
    """Return the section on `model.pt2`."""
    example = "" if config.example is None else _example(config.example)
    rows = "of any number of examples from 2" if program.any_batch else f"of {program.rows} examples, no other number"
    folded = ""
    if program.folded is not None:
        folded = (
            f" {program.folded} of {program.norms} batch norms are folded into the convolutions before them, which "
            "cannot be trained further like that."
        )
    return [
        "## Without Espalier",
        "",
        "```python",
        "import torch",
        "",
        f'model = torch.export.load("{folder}/{PROGRAM}").module()',
        f"outputs = model({example})",
        "```",
        "",
        f"`{PROGRAM}` holds the computation with its weights, as `torch.export` writes it, in eval mode. It needs "
        f"torch alone, and takes batches {rows}.{folded} On {program.rows} random inputs, outputs differ from those "
        f"of `load` by at most {program.error:.1e} of the largest value of an output.",
        "",
    ]


def _code(config: ExportedModel) -> str:
    if config.model is None or config.model.entrypoint is None:
        return ""
    return f", and the module `{config.model.entrypoint.partition(':')[0]}` of the model's code on `PYTHONPATH`"


def _how(state: CheckpointState, result: RunResult | None) -> str:
    if result is None:
        return f"for {state.used_seconds:.1f} s so far: this is a checkpoint of a run that has not ended"
    return f"under a time budget of {result.time_budget_seconds:g} s ({result.phase}, {result.reason})"


def _budget(state: CheckpointState, result: RunResult | None) -> str:
    if result is None:
        return f"{state.used_seconds:.1f} s of the time budget"
    return (
        f"{result.used_seconds:.1f} of {result.time_budget_seconds:g} s of the time budget, "
        f"{result.gpu_seconds_used:.1f} GPU-seconds"
    )


def _metrics(state: CheckpointState, result: RunResult | None) -> Iterable[tuple[str, str]]:
    figures = {metric.name: metric.value for metric in state.metrics}
    if result is not None:
        score = result.score
        test = {"test_loss": result.test_loss} | ({} if score is None else {f"test_{score.measure}": score.value})
        figures |= {name: value for name, value in test.items() if value is not None}
    return [(name.replace("_", " "), f"{value:.4g}") for name, value in sorted(figures.items())]


def _growth(grown: Sequence[Adaptation]) -> list[str]:
    if not grown:
        return ["It did not grow."]
    rows = [
        (
            f"{each.used_seconds:.1f}",
            each.action,
            f"{each.depth_before} to {each.depth_after}",
            f"{each.parameters_before:,} to {each.parameters_after:,}",
            each.policy or str(each.source),
        )
        for each in grown
    ]
    return _table(("at (s)", "growth", "depth", "parameters", "advised by"), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
