"""The trainer on Kubernetes: it watches its own job and patches its own report. Nothing else here knows a cluster.

Importing this package imports the Kubernetes client, so `espalier_trainer.session` does it only where a cluster is.
"""

from espalier_trainer.kube.api import NoAccessError, connect
from espalier_trainer.kube.reporter import ConfigMapReporter
from espalier_trainer.kube.watch import JobWatch

__all__ = ["ConfigMapReporter", "JobWatch", "NoAccessError", "connect"]
