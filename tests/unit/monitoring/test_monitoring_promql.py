"""What an expression names is found, and nothing else."""

from __future__ import annotations

import pytest

from promql_names import names

CASES = {
    "up": ({"up": set()}, set()),
    'sum by (phase) (jobs{namespace="a", phase!~"b|c"})': ({"jobs": {"namespace", "phase"}}, {"phase"}),
    "histogram_quantile(0.99, sum by (le, verb) (rate(x_bucket[$__rate_interval]))) > 1e3": (
        {"x_bucket": set()},
        {"le", "verb"},
    ),
    "a unless max_over_time(a[30m] offset 30m) or increase(a[30m])": ({"a": set()}, set()),
    "time() - a > 90 and on (pod) b{x=\"{y}\", z='q'} == 1": ({"a": set(), "b": {"x", "z"}}, {"pod"}),
    'x{a="1"} / ignoring (b) group_left (c) x{d="$e"}': ({"x": {"a", "d"}}, {"b", "c"}),
    "absent(leader == 1)": ({"leader": set()}, set()),
}


@pytest.mark.parametrize("expression", CASES)
def test_names_are_found(expression: str) -> None:
    selected, grouped = CASES[expression]
    found = names(expression)
    assert {metric: set(labels) for metric, labels in found.selected.items()} == selected
    assert found.grouped == grouped


def test_a_selector_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name the metric before it"):
        names('sum({job="x"})')
