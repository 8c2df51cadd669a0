"""The CRD: the definition of `AdaptiveTrainingJob` for Kubernetes, generated from the models.

`python -m espalier_api.crd FOLDER` writes it; `make crd` calls that for `crds/`.
"""

from espalier_api.crd.document import CATEGORY, NAME, SHORT_NAME, custom_resource_definition, render

__all__ = ["CATEGORY", "NAME", "SHORT_NAME", "custom_resource_definition", "render"]
