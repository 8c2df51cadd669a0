"""PromQL expressions that several dashboards and alerts need."""

from __future__ import annotations

Query = tuple[str, str]
"""PromQL and its legend, which names labels as `{{label}}`."""


def risen(metric: str, selector: str, window: str) -> str:
    """Return PromQL for how much a counter rose in `window`, for each of its series.

    `increase` alone misses the first event of a series, which comes into being at 1, and rare events are all first.
    A series is new that was not there in the hour before: a shorter gap in the scrapes does not make it so. An exporter
    that removes a series has to bring it back at 0, before its next event.
    """
    series = f"{metric}{selector}"
    new = f"({series} unless max_over_time({series}[1h] offset {window}))"
    return f"({new} or increase({series}[{window}]))"


def apart(aggregate: str, labels: str, series: str, legend: str = "") -> Query:
    """Return a query that aggregates `series` by `labels`, and its legend: `legend`, or the labels."""
    by = f" by ({labels})" if labels else ""
    return f"{aggregate}{by} ({series})", legend or " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))


def named(series: str, label: str, name: str) -> str:
    """Return `series`, where an empty `label` is `name`: a legend of nothing cannot be read."""
    return f'label_replace({series}, "{label}", "{name}", "{label}", "")'


def rate(metric: str, labels: str = "", legend: str = "") -> Query:
    """Return a query for the rate of a counter by `labels`."""
    return apart("sum", labels, f"rate({metric}[$__rate_interval])", legend)


def rises(metric: str, labels: str = "", legend: str = "") -> Query:
    """Return a query for how much a counter of rare events rose, by `labels`."""
    return apart("sum", labels, risen(metric, "", "$__rate_interval"), legend)


def quantiles(metric: str, by: str = "", selector: str = "", *, rare: bool = False) -> tuple[Query, ...]:
    """Return queries and legends for the median and 99th percentile of a histogram, apart by the label `by`.

    `rare`: of what happens now and then, so that the first of it counts, too.
    """
    buckets = f"{metric}_bucket"
    rise = risen(buckets, selector, "$__rate_interval") if rare else f"rate({buckets}{selector}[$__rate_interval])"
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (f"histogram_quantile({share}, sum by ({labels}) ({rise}))", name)
        for share, name in ((0.5, f"p50{legend}"), (0.99, f"p99{legend}"))
    )
