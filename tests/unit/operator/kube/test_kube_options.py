"""The command's options are the settings; what cannot be is refused with option, value and remedy."""

from __future__ import annotations

import re
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from espalier_operator.kube.process.health import Address
from espalier_operator.kube.process.lease import LeaseTimes
from espalier_operator.kube.process.main import main
from espalier_operator.kube.settings import KubeSettings, settings_of, settings_options


@click.command(context_settings={"auto_envvar_prefix": "ESPALIER_OPERATOR"})
@settings_options
def show(**given: object) -> None:
    """Print the settings."""
    click.echo(repr(settings_of(given)))


def test_every_setting_is_an_option_with_a_sentence() -> None:
    text = CliRunner().invoke(main, ["--help"], terminal_width=200).output
    for field in fields(KubeSettings):
        assert re.search(rf"--{field.name.replace('_', '-')} (TEXT|FLOAT| )\s+\w+", text), field.name


def test_without_options_the_settings_are_the_defaults() -> None:
    assert CliRunner().invoke(show, []).output.strip() == repr(KubeSettings())


def test_options_and_variables_are_settings() -> None:
    options = ["--grace-seconds=0", "--watch-namespaces=a", "--watch-namespaces=b", "--extra-priority-class="]
    result = CliRunner().invoke(show, options, env={"ESPALIER_OPERATOR_AGENT_URL": "http://agent:80"})
    wanted = KubeSettings(
        grace_seconds=0.0, watch_namespaces=("a", "b"), extra_priority_class=None, agent_url="http://agent:80"
    )
    assert result.output.strip() == repr(wanted)


def test_what_has_a_default_may_be_none() -> None:
    result = CliRunner().invoke(show, ["--tolerated-taints=none", "--departing-nodes=none"])
    assert result.output.strip() == repr(KubeSettings(tolerated_taints=(), departing_nodes=()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--promise-seconds=0"], "'--promise-seconds': 0 seconds is out of range; give more than 0"),
        (["--persist-seconds=nan"], "'--persist-seconds': nan seconds is out of range; give 0 or more"),
        (["--resync-seconds=inf"], "'--resync-seconds': inf seconds is out of range"),
        (["--grace-seconds=soon"], "'soon' is not a valid float"),
        (["--gpu-resource="], "'--gpu-resource': is empty; leave the option out for its default"),
        (["--controller-name=second"], "'second' has no domain; write DOMAIN/NAME"),
        (["--gpu-resource=gpu"], "'gpu' has no domain; write DOMAIN/NAME, as in nvidia.com/gpu"),
        (["--other-gpu-resources=amd.com/gpu", "--other-gpu-resources=gpu"], "'gpu' is not DOMAIN/NAME, as in amd.com"),
        (["--other-gpu-resources=a.b/c/d"], "'a.b/c/d' is not DOMAIN/NAME"),
        (["--other-gpu-resources=deviceclass.resource.kubernetes.io/"], "kubernetes.io/' is not DOMAIN/NAME"),
        (["--watch-namespaces="], "one of its values is empty"),
        (["--agent-url=agent:80"], "'agent:80' is not a URL; write http://HOST:PORT"),
        (["--image-pull-policy=Sometimes"], "give Always, IfNotPresent or Never"),
        (["--trainer-user=0"], "'0' is not a user ID; give a number above 0, or nothing"),
        (["--trainer-user=root"], "'root' is not a user ID"),
        (["--policy=theirs"], "unknown scheduling policy 'theirs'"),
        (["--policy=las:thresholds=2/1"], "thresholds: (2.0, 1.0) are invalid; must be GPU-seconds above 0, rising"),
        (["--policy=fifo:promote=8"], "promote: unknown setting of policy fifo; it takes"),
        (["--http=8080"], "'8080' is not an address; write HOST:PORT"),
        (["--http=host:99999"], "is not an address"),
        (["--snapshot-http=0.0.0.0:1"], "a snapshot names everybody's jobs; give 127.0.0.1:PORT"),
        (["--lease-seconds=1"], "1 is not in the range"),
        (["--kubeconfig=/no/such/file"], "does not exist"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], words: str) -> None:
    result = CliRunner().invoke(main, options, terminal_width=200)
    assert result.exit_code == 2
    assert words in result.output


def test_addresses() -> None:
    assert Address.parse("0.0.0.0:8080") == Address("0.0.0.0", 8080)
    assert Address.parse("[::1]:80") == Address("::1", 80)
    loopbacks = {"127.0.0.1:1": True, "[::1]:1": True, "localhost:1": True, "0.0.0.0:1": False, ":1": False}
    assert {text: Address.parse(text).is_loopback for text in loopbacks} == loopbacks


@pytest.mark.parametrize("seconds", [3, 6, 15, 60])
def test_a_holder_stops_before_another_may_begin(seconds: int) -> None:
    """Also when its last request was on its way as long as a request may be."""
    times = LeaseTimes.of(seconds)
    assert times.renewal < times.duration
    assert times.renewal > 1.2 * times.retry, "what the election library asks for"
    if seconds == 15:
        assert (times.renewal, times.retry) == (10, 2)
