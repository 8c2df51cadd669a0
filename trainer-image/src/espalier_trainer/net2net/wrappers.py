"""Models that something has wrapped, split or compiled, by the names of its classes: none of it is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import nn

_INNER: Final[Mapping[str, str]] = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
}
"""Wrappers that leave the model whole, with the attribute that holds it."""
_SPLIT: Final[Mapping[str, str]] = {
    "FSDPModule": "fully_shard (FSDP2)",
    "FullyShardedDataParallel": "FullyShardedDataParallel (FSDP1)",
    "XlaFullyShardedDataParallel": "XlaFullyShardedDataParallel",
    "ShardedDataParallel": "ShardedDataParallel (fairscale)",
    "DeepSpeedEngine": "DeepSpeed",
    "DeepSpeedHybridEngine": "DeepSpeed",
    "PipelineEngine": "a pipeline (DeepSpeed)",
    "PipelineModule": "a pipeline (DeepSpeed)",
    "Pipe": "a pipeline",
    "PipelineStage": "a pipeline (torch.distributed.pipelining)",
    "_PipelineStageBase": "a pipeline (torch.distributed.pipelining)",
}
_TENSORS: Final[Mapping[str, str]] = {
    "DTensor": "parallelize_module or distribute_tensor (tensor parallelism)",
    "ShardedTensor": "ShardedTensor",
    "FlatParameter": "FullyShardedDataParallel (FSDP1)",
}
_ZERO: Final = "ds_id"
"""Attribute of the parameters that DeepSpeed ZeRO has partitioned."""


def why_wrapped(model: object) -> str | None:
    """Return what wraps a model as a whole, which can be taken off for growth; None where nothing does."""
    kind = type(model).__name__
    inner = next((_INNER[base] for base in _bases(model) if base in _INNER), None)
    return inner and (
        f"{kind} wraps the model; grow its `.{inner}` and wrap the result again (a job's model must not be wrapped)"
    )


def why_split(model: object) -> str | None:
    """Return what has split a model's weights or layers over several processes; None where nothing has."""
    found = None
    for path, module in model.named_modules() if isinstance(model, nn.Module) else [("", model)]:
        found = next((_SPLIT[base] for base in _bases(module) if base in _SPLIT), None)
        for parameter in module._parameters.values() if isinstance(module, nn.Module) else ():
            if found is None and parameter is not None:
                found = _TENSORS.get(type(parameter).__name__) or _TENSORS.get(type(parameter.data).__name__)
                found = found or ("DeepSpeed ZeRO" if hasattr(parameter, _ZERO) else None)
        if found is not None:
            where = f" at {path!r}" if path else ""
            return (
                f"{type(model).__name__} is split over several processes by {found}{where}; each worker of a job, and "
                "growth, needs the whole model: give the model as it was before that"
            )
    return None


def _bases(model: object) -> list[str]:
    return [base.__name__ for base in type(model).__mro__]
