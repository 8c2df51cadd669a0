"""`spec.training`: model, data set, optimizer, and how workers train together."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from espalier_core.base import MAX_PATH, Strict
from espalier_core.registry import Registry
from espalier_core.types.task import Task

_DATASETS: Final = {
    "digits": "espalier_trainer.data.carried:digits",
    "cifar8": "espalier_trainer.data.torchvision_sets:cifar8",
    "cifar10": "espalier_trainer.data.torchvision_sets:cifar10",
    "mnist": "espalier_trainer.data.torchvision_sets:mnist",
    "imagefolder": "espalier_trainer.data.imagefolder:load",
    "text": "espalier_trainer.data.text:load",
    "python-library": "espalier_trainer.data.text:python_library",
    "diabetes": "espalier_trainer.data.carried:diabetes",
}
DATASETS: Final[Registry[Callable[..., Any]]] = Registry("data set", "espalier.datasets", _DATASETS)
"""Functions that take a `DatasetSpec` and return the trainer's `Data`."""

DatasetName = Annotated[
    str,
    AfterValidator(DATASETS.check),
    WithJsonSchema({"type": "string", "enum": list(_DATASETS)}),
]
"""The name of a data set. Schemas name the built-in ones: they cannot know what is installed."""
_ENTRYPOINT: Final = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"


class ElasticBatch(StrEnum):
    """Division of the batch when several workers train together."""

    KEEP_GLOBAL = "keepGlobal"
    """The batch is split among the workers; batch size and learning rate do not change."""
    SCALE_LINEAR = "scaleLinear"
    """Each worker takes a whole batch; the learning rate is multiplied by the number of workers (Goyal et al. 2017)."""


class Precision(StrEnum):
    """Number format of outputs and gradients. Weights and the optimizer's state are float32."""

    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    """Matrix products in bfloat16 (torch's autocast): half the memory of activations, and faster where the hardware
    has it."""


class BatchSizing(StrEnum):
    """Rule for the batch size."""

    FIXED = "Fixed"
    """The batch size is always `batchSize`."""
    GOODPUT = "Goodput"
    """The trainer chooses the multiple of `batchSize` that makes the most progress per second, by measured speeds and
    gradient noise (Pollux, OSDI 2021). The learning rate follows it (AdaScale)."""


class Stragglers(StrEnum):
    """Treatment of a worker that is much slower than the others."""

    REPORT = "Report"
    """The job's events report it; the others wait for it."""
    DROP = "Drop"
    """It is excluded for a minute, then for two minutes, and the third time for good."""


class ModelSpec(Strict):
    """The starting model: a known name, or your own function."""

    name: str | None = Field(default=None, pattern=r"^(digits|cifar8|cnn1|cnn2|gpt|mlp|torchvision:[a-z0-9_]+)$")
    """`digits`, `cifar8`, `cnn1`, `cnn2`, `gpt` (a language model), `mlp` (for rows of numbers) or
    `torchvision:<name>`."""
    entrypoint: str | None = Field(default=None, pattern=_ENTRYPOINT)
    """`package.module:function`, called with `options`; returns a `torch.nn.Module`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the constructor."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.name is None) == (self.entrypoint is None):
            raise ValueError("needs exactly one of name and entrypoint")
        return self


class DatasetSpec(Strict):
    """The data: a known name, or your own function."""

    name: DatasetName | None = None
    """A known data set; `imagefolder` is a folder with one folder of images per class."""
    entrypoint: str | None = Field(default=None, pattern=_ENTRYPOINT)
    """`package.module:function`, called with `path` (if set) and `options`; returns (train, validation, test)."""
    path: str | None = Field(default=None, pattern=r"^[^\x00]+$", max_length=MAX_PATH)
    """Folder or archive that contains the data."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.name is None) == (self.entrypoint is None):
            raise ValueError("needs exactly one of name and entrypoint")
        if self.name == "imagefolder" and self.path is None:
            raise ValueError("path is needed for imagefolder: a folder with one folder of images per class")
        if self.name == "text" and self.path is None:
            raise ValueError("path is needed for text: a file or a folder of files in UTF-8")
        return self


class OptimizerSpec(Strict):
    """The optimizer, by its torch name."""

    name: Literal["Adam", "AdamW", "SGD", "RMSprop"] = "Adam"
    """A class of `torch.optim`."""
    learning_rate: float = Field(default=0.01, gt=0, le=100)
    """The initial rate; `schedule` changes it over time."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """SGD and RMSprop only."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """`weight_decay` of the optimizer."""
    decay_matrices_only: bool = False
    """Apply `weightDecay` to matrices and kernels alone, not to biases, norms and other vectors."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], ...] | None = Field(default=None, min_length=2, max_length=2)
    """Adam and AdamW only: decay of the first and of the second moment. Default: torch's, 0.9 and 0.999."""
    max_gradient_norm: float | None = Field(default=None, gt=0, le=1e9)
    """Gradients whose norm, over all parameters, is larger are scaled to it. If absent, they are not."""
    fused: bool = True
    """Update all parameters in one call, where torch can (Adam, AdamW and SGD; not with sparse gradients): the same
    update, computed faster. Results differ from those of separate calls in the last digits. A resumed job keeps its
    checkpoint's setting."""

    @model_validator(mode="after")
    def _known_to_it(self) -> Self:
        if self.betas is not None and self.name not in ("Adam", "AdamW"):
            raise ValueError(f"has betas, which {self.name} does not know; use Adam or AdamW, or remove them")
        return self


class ScheduleSpec(Strict):
    """The learning rate over the budget."""

    name: str = Field(
        default="BudgetLinear", pattern=r"^(BudgetLinear|Exponential|Constant|torch:[A-Za-z][A-Za-z0-9_]*)$"
    )
    """`BudgetLinear`: linearly to 0 at the deadline. `Exponential`: ×`decay` per epoch. `Constant`.
    `torch:<Name>`: a scheduler of `torch.optim.lr_scheduler`, created with `options` and stepped once per epoch."""
    restart_on_growth: bool = True
    """After growth, restart from the initial rate."""
    decay: float = Field(default=0.9, gt=0, le=1)
    """Factor per epoch of `Exponential`."""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """Share of the time budget in which the rate rises from 0 at first, and after a restart."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of a `torch:` scheduler."""


_TWO_RULES: Final = "cannot be scaleLinear with batch: Goodput, which chooses the size for all workers; use keepGlobal"


class MemoryFormat(StrEnum):
    """Memory layout of the kernels of convolutions. Results are the same but for rounding."""

    CONTIGUOUS = "Contiguous"
    """Torch's default order (channels first)."""
    AUTO = "Auto"
    """After the first epoch, channels-last is tried in pairs of steps and kept if it is faster, within the limits
    `adaptation.optimiseMinGain` and `optimiseShare`. Growth and checkpoints keep it."""


class TrainingSpec(Strict):
    """Settings of the ready trainer; your own image may ignore them."""

    task: Task = Task.CLASSIFICATION
    """The learning task; must match the data set."""
    model: ModelSpec = ModelSpec(name="digits")
    dataset: DatasetSpec = DatasetSpec(name="digits")
    batch_size: int = Field(default=64, ge=1, le=1_000_000)
    """Samples per step, of all workers together; with `elasticBatch: scaleLinear`, of each worker."""
    batch: BatchSizing = BatchSizing.FIXED
    """Whether the trainer may choose a batch size up to `maxBatchSize`. `Goodput` cannot be combined with
    `elasticBatch: scaleLinear`, because the chosen size is for all workers together."""
    max_batch_size: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The largest batch of all workers together. Required with `batch: Goodput`."""
    max_batch_size_per_worker: int | None = Field(default=None, ge=1, le=1_000_000)
    """With `batch: Goodput`: the most examples that a worker computes at once. It computes larger parts in several
    passes. If absent, its memory is the limit: a size at which it runs out of memory is not tried again."""
    accumulation: int = Field(default=1, ge=1, le=100_000)
    """The number of parts in which each worker computes its share of a batch; the gradients of the parts are added. The
    steps stay the same and need less memory. With `batch: Goodput`, set `maxBatchSizePerWorker` instead."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of blocks (members of a `ModuleList`) for the backward pass and compute the rest again: less
    memory, steps about a third longer. Blocks with batch norms are left as they are."""
    precision: Precision = Precision.FLOAT32
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS
    """The ready trainer only."""
    weight_averaging: float = Field(default=0.0, ge=0, lt=1)
    """Decay per step of an exponential moving average of the weights, such as 0.999. The average is evaluated instead
    of the weights. 0: none."""
    elastic_batch: ElasticBatch | None = None
    """`keepGlobal` or `scaleLinear`: all workers train together, and join and leave a running job. If absent, extra
    workers hold their GPUs and do not train."""
    sync_batch_norm: bool | None = None
    """True: batch norms compute their statistics over the examples of all workers, at the cost of extra messages."""
    stragglers: Stragglers | None = None
    """With elasticBatch: `Report` (also if absent) or `Drop` an extra or base worker that is five times slower than the
    others for twenty steps. A dropped worker may join again after a minute; the third time it stays out."""
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    evaluate_every_epochs: int = Field(default=1, ge=1, le=1_000_000)
    """Epochs between two evaluations on the validation split. If epochs last milliseconds, evaluating after each would
    use up the budget."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the initial weights and the order of samples."""

    @field_validator("max_batch_size")
    @classmethod
    def _sizes_in_order(cls, value: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("batch_size", 1)
        if value is not None and value < least:
            raise ValueError(f"is {value}, less than batchSize; must be at least {least}")
        return value

    @field_validator("elastic_batch")
    @classmethod
    def _one_rule_of_scaling(cls, value: ElasticBatch | None, info: ValidationInfo) -> ElasticBatch | None:
        if value is ElasticBatch.SCALE_LINEAR and info.data.get("batch") is BatchSizing.GOODPUT:
            raise ValueError(_TWO_RULES)
        return value

    @field_validator("accumulation")
    @classmethod
    def _passes_of_one(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and info.data.get("batch") is BatchSizing.GOODPUT:
            raise ValueError(f"is {value} with batch: Goodput, which chooses the parts; set maxBatchSizePerWorker")
        return value

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.batch is BatchSizing.GOODPUT and self.max_batch_size is None:
            raise ValueError("needs maxBatchSize, the largest batch size that batch: Goodput may choose")
        return self
