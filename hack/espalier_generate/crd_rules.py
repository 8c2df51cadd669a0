"""CEL rules for conditions that the types of a job cannot express: the API server names the field and the remedy.

Each rule belongs to the model that it checks: `self` is the new value, `oldSelf` the stored one. Rules that need the
status, to know whether a job runs, belong to the whole job.

The operator checks what CEL cannot express (condition `Admitted`, reason `InvalidSpec`). Which resource counts as a GPU
is a setting of the operator, so the API server can only require some whole extended resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NotRequired, TypedDict

from espalier_core.types.job import KIND, MAX_NAME_LENGTH
from espalier_core.types.queue import LIMIT_WITHOUT_COHORT, QUEUE_KIND


class CelRule(TypedDict):
    """A CEL rule of the API server (`x-kubernetes-validations`)."""

    rule: str
    message: str
    """The fault and the remedy."""
    messageExpression: NotRequired[str]
    """A CEL expression for the message with values. If it fails, `message` is used."""
    fieldPath: NotRequired[str]
    """The field that the error names, relative to the rule."""


def _same(path: str) -> str:
    """Return an expression that is true if the field at `path` has not changed, or is still absent.

    It compares both ways, because CEL only compares the fields of the left side. It does not notice if two fields that
    the schema leaves open (in a pod template) swap their values.
    """
    same = f"self.{path} == oldSelf.{path} && oldSelf.{path} == self.{path}"
    return f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})"


_ADMITTED = "has(oldSelf.status) && has(oldSelf.status.scheduling) && has(oldSelf.status.scheduling.admittedAt)"
_TRAINED = "has(oldSelf.status) && has(oldSelf.status.startTime)"


def _fixed_while_admitted(path: str) -> CelRule:
    running = (
        "is fixed from admission on; suspend the job (spec.suspend: true), change it once it is suspended, "
        "and resume it; or apply it under another name"
    )
    finished = "is fixed, as the job has finished; delete the job first, or apply it under another name"
    return {
        # A finished job stays admitted: its status records what it ran on.
        "rule": f"!({_ADMITTED}) || ({_same(path)})",
        "message": running,
        "messageExpression": f"has(oldSelf.status.completionTime) ? '{finished}' : '{running}'",
        "fieldPath": f".{path}",
    }


def _fixed_once_trained(path: str, why: str) -> CelRule:
    return {
        "rule": f"!({_TRAINED}) || ({_same(path)})",
        "message": f"is fixed once the job has trained, {why}; apply it under another name",
        "fieldPath": f".{path}",
    }


_ONE_OF: Final[CelRule] = {
    "rule": "has(self.name) != has(self.entrypoint)",
    "message": "needs exactly one of name and entrypoint",
}
# Every other resource of a container is an extended resource, for which Kubernetes accepts whole numbers only. Strings
# are checked character by character: the API server assumes values of megabytes, and rejects expensive rules.
_EXTENDED = "!(k in ['cpu', 'memory', 'ephemeral-storage'] || k.startsWith('hugepages-'))"
_WHOLE = (
    "(type({0}[k]) == int ? {0}[k] >= 0 : {0}[k].size() in [1, 2, 3, 4, 5, 6, 7] && [0, 1, 2, 3, 4, 5, 6]"
    ".all(i, i >= {0}[k].size() || {0}[k].charAt(i) in ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']))"
)

RULES: Final[Mapping[str, Sequence[CelRule]]] = {
    KIND: (
        {
            "rule": f"self.metadata.name.size() <= {MAX_NAME_LENGTH}",
            "message": f"has more than {MAX_NAME_LENGTH} characters; shorten it, as names of its pods must fit a label",
            "fieldPath": ".metadata.name",
        },
        {
            "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "message": "must be lower-case letters, digits and '-', beginning with a letter and ending with a letter "
            "or digit, as it is the name of a Service",
            "fieldPath": ".metadata.name",
        },
        _fixed_while_admitted("spec.template"),
        _fixed_while_admitted("spec.minReplicas"),
        _fixed_while_admitted("spec.training"),
        _fixed_while_admitted("spec.queue"),
        {
            "rule": f"!({_ADMITTED}) || has(self.spec.program) == has(oldSelf.spec.program)",
            "message": "can be neither added nor removed from admission on; suspend the job (spec.suspend: true) first",
            "fieldPath": ".spec.program",
        },
        _fixed_once_trained("spec.training.model", "as its checkpoints hold this model"),
        _fixed_once_trained("spec.training.dataset", "as its results are of this dataset"),
        _fixed_once_trained("spec.checkpoint.path", "as its checkpoints are there"),
    ),
    QUEUE_KIND: (
        {
            "rule": f"self.metadata.name.size() <= {MAX_NAME_LENGTH}",
            "message": f"has more than {MAX_NAME_LENGTH} characters; shorten it, so that spec.queue can name it",
            "fieldPath": ".metadata.name",
        },
        {
            "rule": "!self.metadata.name.contains('.')",
            "message": "contains '.'; replace it by '-', so that spec.queue can name it",
            "fieldPath": ".metadata.name",
        },
    ),
    "QueueSpec": (
        {
            "rule": "!has(self.quotas) || self.quotas.all(q, self.quotas.exists_one(other, "
            "has(other.gpuType) == has(q.gpuType) && (!has(q.gpuType) || other.gpuType == q.gpuType)))",
            "message": "has two quotas for one gpuType, or two without one; merge them",
            "fieldPath": ".quotas",
        },
        {
            "rule": "has(self.cohort) || !has(self.quotas) || self.quotas.all(q, !has(q.borrowingLimit))",
            "message": LIMIT_WITHOUT_COHORT,
            "fieldPath": ".quotas",
        },
    ),
    "JobSpec": (
        {
            "rule": "self.maxReplicas >= self.minReplicas",
            "message": "must be at least minReplicas; raise it or lower minReplicas",
            "fieldPath": ".maxReplicas",
        },
        {
            "rule": "!has(self.program) || self.maxReplicas == self.minReplicas",
            "message": "must equal minReplicas, as a program cannot use extra workers",
            "fieldPath": ".maxReplicas",
        },
        {
            "rule": "!has(self.program) || (has(self.template) && (has(self.template.spec.containers[0].command) || "
            "has(self.template.spec.containers[0].image)))",
            "message": "needs spec.template with the command or the image of the program",
            "fieldPath": ".program",
        },
        {
            "rule": "!has(self.adaptation) || !has(self.adaptation.onReclaim) || self.adaptation.onReclaim != 'Distill'"
            " || !has(self.training) || ((!has(self.training.task) || self.training.task == 'Classification') && "
            "(!has(self.training.weightAveraging) || self.training.weightAveraging == 0.0))",
            "message": "with onReclaim Distill, training.task must be Classification without weightAveraging; use Keep",
            "fieldPath": ".adaptation",
        },
        {
            "rule": "!has(self.adaptation) || !has(self.adaptation.trials) || "
            "self.adaptation.trials in ['Off', 'Auto'] || (has(self.training) && has(self.training.elasticBatch))",
            "message": "is missing, but adaptation.trials needs extra workers that train; set it to keepGlobal, or "
            "adaptation.trials to Auto",
            "fieldPath": ".training.elasticBatch",
        },
        {
            "rule": "!has(self.adaptation) || !has(self.adaptation.trials) || self.adaptation.trials != 'Confirm' || "
            "!has(self.adaptation.insertion) || self.adaptation.insertion != 'Unfold'",
            "message": "cannot be Unfold with trials Confirm, which end before a run has unfolded; use Exact or "
            "Scaled, or set trials to Race or Off",
            "fieldPath": ".adaptation.insertion",
        },
        {
            "rule": "self.controllerName == oldSelf.controllerName",
            "message": "is immutable; apply the job under another name, or delete it first",
            "fieldPath": ".controllerName",
        },
    ),
    "ProgressSpec": (
        {"rule": "has(self.log) != has(self.metrics)", "message": "needs exactly one of log and metrics"},
    ),
    "LogProgress": (
        {"rule": "has(self.pattern) != has(self.json)", "message": "needs exactly one of pattern and json"},
        {
            # A pattern that cannot be compiled is an error of the rule, which refuses the job and says why.
            "rule": "!has(self.pattern) || ''.matches(self.pattern) in [true, false]",
            "message": "is not a regular expression of RE2; correct it",
            "fieldPath": ".pattern",
        },
    ),
    # The API server checks the default value of `training` too, before it fills in those of its fields.
    "TrainingSpec": (
        {
            "rule": "!has(self.maxBatchSize) || !has(self.batchSize) || self.maxBatchSize >= self.batchSize",
            "message": "must be at least batchSize; raise it or lower batchSize",
            "fieldPath": ".maxBatchSize",
        },
        {
            "rule": "!has(self.batch) || self.batch != 'Goodput' || has(self.maxBatchSize)",
            "message": "is missing; batch: Goodput needs the largest batch size that may be chosen",
            "fieldPath": ".maxBatchSize",
        },
        {
            "rule": "!has(self.batch) || self.batch != 'Goodput' || !has(self.elasticBatch) || "
            "self.elasticBatch != 'scaleLinear'",
            "message": "cannot be scaleLinear with batch: Goodput, which chooses the size for all workers; "
            "use keepGlobal",
            "fieldPath": ".elasticBatch",
        },
        {
            "rule": "!has(self.batch) || self.batch != 'Goodput' || !has(self.accumulation) || self.accumulation == 1",
            "message": "must be 1 with batch: Goodput, which chooses the parts; set maxBatchSizePerWorker",
            "fieldPath": ".accumulation",
        },
    ),
    "OptimizerSpec": (
        {
            "rule": "!has(self.betas) || !has(self.name) || self.name in ['Adam', 'AdamW']",
            "message": "are of Adam and AdamW; use one of these, or remove them",
            "fieldPath": ".betas",
        },
    ),
    "ModelSpec": (_ONE_OF,),
    "DatasetSpec": (
        _ONE_OF,
        {
            "rule": "!has(self.name) || self.name != 'imagefolder' || has(self.path)",
            "message": "is needed for imagefolder: a folder with one folder of images per class",
            "fieldPath": ".path",
        },
        {
            "rule": "!has(self.name) || self.name != 'text' || has(self.path)",
            "message": "is needed for text: a file or a folder of files in UTF-8",
            "fieldPath": ".path",
        },
    ),
    "PodSpec": (
        {
            "rule": "self.containers.exists(c, has(c.resources) && has(c.resources.limits) && "
            f"c.resources.limits.exists(k, {_EXTENDED} && {_WHOLE.format('c.resources.limits')} "
            "&& int(c.resources.limits[k]) >= 1)) || has(self.resourceClaims) && "
            "self.resourceClaims.exists(c, has(c.resourceClaimTemplateName))",
            "message": "no container has a limit of a GPU resource (such as nvidia.com/gpu: 1), and no resourceClaims "
            "name a resourceClaimTemplateName; the GPUs of a worker are read there, and it needs one",
            "fieldPath": ".containers",
        },
    ),
    "ResourceRequirements": (
        {
            "rule": f"!has(self.limits) || self.limits.all(k, !({_EXTENDED}) || {_WHOLE.format('self.limits')})",
            "message": "GPUs and other extended resources come in whole numbers; write 1 (or, as text, up to 7 digits)",
            "fieldPath": ".limits",
        },
    ),
}
