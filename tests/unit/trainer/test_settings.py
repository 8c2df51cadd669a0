"""What the environment tells a trainer process."""

from __future__ import annotations

import pytest

from espalier_core.types.environment import Role
from espalier_trainer.process.settings import SettingsError, TrainerSettings

JOB = {"ESPALIER_JOB_FILE": "job.json"}


def test_without_a_cluster_the_process_leads():
    settings = TrainerSettings.from_environment(JOB)
    assert settings.leads
    assert (settings.job_key, settings.report_config_map, settings.incarnation) == (None, None, "")


@pytest.mark.parametrize(
    ("role", "index", "leads"), [("base", "0", True), ("base", "1", False), ("extra", "0", False), ("", "", True)]
)
def test_base_worker_0_leads(role, index, leads):
    settings = TrainerSettings.from_environment({**JOB, "ESPALIER_WORKER_ROLE": role, "ESPALIER_WORKER_INDEX": index})
    assert settings.leads is leads
    assert settings.role is Role(role or "base")


def test_job_to_watch_is_named_by_two_variables():
    name, namespace = {"ESPALIER_JOB_NAME": "digits"}, {"ESPALIER_JOB_NAMESPACE": "team"}
    assert TrainerSettings.from_environment({**JOB, **name, **namespace}).job_key == "team/digits"
    for given, missing in ((name, "ESPALIER_JOB_NAMESPACE"), (namespace, "ESPALIER_JOB_NAME")):
        with pytest.raises(SettingsError, match=f"{missing} is not set"):
            TrainerSettings.from_environment({**JOB, **given})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ESPALIER_WORKER_ROLE", "leader", "must be base or extra"),
        ("ESPALIER_WORKER_INDEX", "-1", "must be a whole number"),
        ("ESPALIER_WORKER_INDEX", "first", "must be a whole number"),
    ],
)
def test_what_cannot_be_used_is_named(name, value, said):
    with pytest.raises(SettingsError, match=f"{name} is {value!r}.*{said}"):
        TrainerSettings.from_environment({**JOB, name: value})
