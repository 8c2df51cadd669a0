"""A job whose command does not use Espalier's library: any program, and the source of its progress."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Self

import re2
from pydantic import AfterValidator, Field, field_validator, model_validator

from espalier_core.base import Strict, repeated
from espalier_core.types.report import MAX_NAME

KNOWN_VALUES: Final = ("step", "steps", "epoch", "epochs", "fraction", "percent")
"""Names of values with a special meaning; every other name is a figure."""
MAX_VALUES: Final = 16
"""Maximum number of values that are read from a program."""
MAX_PATTERN: Final = 512
"""Maximum length of a line pattern, in characters."""
_PATTERN_BYTES: Final = 1 << 20
"""Maximum memory of a compiled pattern, in bytes. RE2 refuses patterns that need more."""
_NAME: Final = r"^[A-Za-z_][A-Za-z0-9_./-]*$"
_SELECTOR: Final = re.compile(
    r'[A-Za-z_:][A-Za-z0-9_:]*(\{([A-Za-z_][A-Za-z0-9_]*="[^"\\\n]*"(,(?=[A-Za-z_])|(?=\})))+\})?\Z'
)
_GROUP: Final = re.compile(r"\(\?P?<([A-Za-z_][A-Za-z0-9_]*)>")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="([^"\\\n]*)"')


def compile_pattern(text: str) -> Any:
    """Return the compiled line pattern (`re2`, whose time is linear in the length of the line).

    Raise `ValueError` if it is not a regular expression of RE2, repeats a group or has none, or has too many groups or
    names that are too long.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        what = error.args[0] if error.args else error
        what = what.decode(errors="replace") if isinstance(what, bytes) else str(what)
        raise ValueError(
            f"is {_shown(text)}, no regular expression of RE2: {what}; correct it (RE2 has no look-around and no "
            "back-references; in YAML, put it in single quotes)"
        ) from error
    for twice in repeated(_GROUP.findall(text)):
        raise ValueError(f"is {_shown(text)}, with two groups {twice!r}; give each another name")
    if not compiled.groupindex:
        raise ValueError(f"is {_shown(text)}, without a named group; name what is to be read, as in (?P<step>[0-9]+)")
    if len(compiled.groupindex) > MAX_VALUES:
        raise ValueError(f"has {len(compiled.groupindex)} named groups; at most {MAX_VALUES} values are read")
    if long := next((name for name in compiled.groupindex if len(name) > MAX_NAME), None):
        raise ValueError(f"names a group {_shown(long)}; a name has at most {MAX_NAME} characters")
    return compiled


def selector_of(series: str) -> tuple[str, dict[str, str]]:
    """Return the name of a series and its required labels; `series` is valid."""
    name, _, labels = series.partition("{")
    return name, dict(_LABEL.findall(labels))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _pattern(value: str) -> str:
    compile_pattern(value)
    return value


def is_value_name(name: str) -> bool:
    """Return whether a value may have this name."""
    return len(name) <= MAX_NAME and re.fullmatch(_NAME[1:-1], name) is not None


def _names(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not is_value_name(name):
            raise ValueError(
                f"names a value {_shown(name)}; a name begins with a letter, has letters, digits, '_', '.', '/' and "
                f"'-', and at most {MAX_NAME} characters"
            )
    return value


def _series(value: dict[str, str]) -> dict[str, str]:
    for name, series in value.items():
        if not _SELECTOR.match(series):
            raise ValueError(
                f"reads {name} from {_shown(series)}; must be the name of a series, with labels if they are needed: "
                'train_loss{split="validation"}'
            )
    return value


_Source = Annotated[str, Field(min_length=1, max_length=256)]
_Sources = Annotated[dict[str, _Source], Field(min_length=1, max_length=MAX_VALUES), AfterValidator(_names)]


class LogProgress(Strict):
    """Progress in the output of the first container: set exactly one of `pattern` and `json`."""

    pattern: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN), AfterValidator(_pattern)] | None = None
    """A regular expression (RE2) that is searched in each line. Its named groups are the values:
    `step (?P<step>\\d+)/(?P<steps>\\d+).*loss (?P<loss>[0-9.e+-]+)`."""
    json_lines: _Sources | None = Field(default=None, alias="json")
    """For lines that are JSON objects: the key of each value."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.pattern is None) == (self.json_lines is None):
            raise ValueError("needs exactly one of pattern and json")
        return self


class MetricsProgress(Strict):
    """Progress in Prometheus metrics that the leader's pod serves."""

    port: int = Field(ge=1, le=65535)
    """Port of the endpoint."""
    path: str = Field(default="/metrics", pattern=r"^/[!-~]*$", max_length=256)
    """Path of the endpoint."""
    series: Annotated[_Sources, AfterValidator(_series)]
    """The series of each value, with labels if they are needed: `loss{split="validation"}`."""


class ProgressSpec(Strict):
    """The source of a program's progress: set exactly one of `log` and `metrics`.

    The values `step` and `epoch` are what is done, `steps` and `epochs` what there is to do; `fraction` (0 to 1) or
    `percent` say how much is done in all. Every other value is a figure of the job's status.
    """

    log: LogProgress | None = None
    metrics: MetricsProgress | None = None
    steps: int | None = Field(default=None, ge=1, le=10**15)
    """The total number of steps, if the program does not report it. It gives the fraction that is done."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.log is None) == (self.metrics is None):
            raise ValueError("needs exactly one of log and metrics")
        return self


class ProgramSpec(Strict):
    """A program that does not use Espalier's library: any image, any command, any framework.

    It trains as soon as its container runs, and is ready if it has a readiness probe. It is stopped by SIGTERM. Exit
    code 0 is the end of the job; any other is a failure.
    """

    progress: ProgressSpec | None = None
    """Absent: nothing is read, and only its GPUs and its time are known."""

    @field_validator("progress", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value == {}:
            raise ValueError("needs exactly one of log and metrics; remove progress if nothing is to be read")
        return value
