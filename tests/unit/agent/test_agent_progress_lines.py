"""Progress: lines as often as they are of use, and always the last."""

from __future__ import annotations

import re

import pytest

from espalier_agent.commands.agent import ProgressLines
from espalier_agent.commands.learn import learning_lines
from espalier_agent.learners.learning import LearningProgress


@pytest.mark.parametrize(("every_seconds", "told"), [(3600.0, ["3 of 3"]), (0.0, ["1 of 3", "2 of 3", "3 of 3"])])
def test_lines_wait_for_their_time_but_for_the_last(
    every_seconds: float, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProgressLines, "EVERY_SECONDS", every_seconds)
    lines, seconds = ProgressLines(), []

    def line(since: float) -> str:
        seconds.append(since)
        return f"{done} of 3"

    for done in (1, 2, 3):
        lines.tell(done, 3, line)
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()) == ("", told)
    assert seconds[0] >= 0
    assert seconds == sorted(seconds)


def test_learning_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for known, text in (
        ({"objective": 1.25, "mean_accuracy": 0.5}, r", objective 1\.2500, mean accuracy 0\.5000"),
        ({}, ""),
    ):
        learning_lines()(LearningProgress(episodes=50, total_episodes=50, **known))
        assert re.fullmatch(rf"50/50 episodes, [0-9]+ a second{text}\n", capsys.readouterr().err)
