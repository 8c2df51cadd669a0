"""The CRDs: the definitions of `AdaptiveTrainingJob` and `Queue` for Kubernetes, generated from the models.

`python -m espalier_generate.crd FOLDER` writes them; `make crd` calls that for `crds/`.
"""

from espalier_generate.crd.document import (
    CATEGORY,
    NAME,
    SHORT_NAME,
    custom_resource_definition,
    definitions,
    queue_definition,
)

__all__ = ["CATEGORY", "NAME", "SHORT_NAME", "custom_resource_definition", "definitions", "queue_definition"]
