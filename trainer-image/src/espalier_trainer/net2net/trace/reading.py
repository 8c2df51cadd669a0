"""Reads of a tensor's values into Python: reads that decide what a model executes, and reads that only check or log.

A trace follows the branch that its run takes. To find out whether there is another one, the forward runs again with
the other outcome of a comparison, or with other numbers (`decision`). Where that computes the same, or only raises,
nothing was decided: an `assert`, a warning, a number for a log. Numbers stay watched, so their comparisons count as
reads, too.
"""

from __future__ import annotations

import dis
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import CodeType, TracebackType
from typing import Any, Final, Self

import numpy as np
from torch.overrides import TorchFunctionMode

READERS: Final = frozenset(
    {
        *(
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
            "__complex__",
            "__contains__",
            "__format__",
            "__array__",
            "__repr__",
        ),
        *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero"),
    }
)
"""Functions and methods of torch that pass values to Python, where they can decide what is executed next."""
_MOST_CHANGES: Final = 1000
"""Maximum number of changed answers in one run: an endless loop gives more."""


@dataclass(frozen=True, slots=True)
class ValueReading:
    """A place in the user's code that reads values."""

    function: str
    at: str
    """File and line, `model.py:12`."""

    def __str__(self) -> str:
        return f"{self.function} at {self.at}" if self.at else self.function


class EndlessError(BaseException):
    """A run with another answer does far more than the original. The user's `except Exception` must not catch it."""


class Notes:
    """Record of the values that one run of a model reads; it may change the answer at one place."""

    def __init__(self, changed: ValueReading | None = None, change: Callable[[Any], Any] | None = None) -> None:
        self._changed, self._change = changed, change
        self.answers: dict[ValueReading, Any] = {}
        self.may_decide: dict[ValueReading, Any] = {}
        """Reads of values that growth may change, with the value."""
        self._unsteady: set[ValueReading] = set()
        self._changes = 0
        self._code: CodeType | None = None
        self.calls_since = 0
        """Number of module calls after the first changed answer."""

    def note(self, function: str, value: Any, *, grows: bool) -> Any:
        """Record that `function` has read `value`; return the answer for the user's code."""
        reading, code = _place(function)
        if reading in self.answers and not _same(self.answers[reading], value):
            self._unsteady.add(reading)
        self.answers[reading] = value
        return self._answer(reading, code, value) if grows else value

    def compared(self, function: str, value: bool) -> bool:
        """Return the outcome of the comparison of a number that was read."""
        reading, code = _place(function)
        answer: bool = self._answer(reading, code, value)
        return answer

    def steady(self) -> dict[ValueReading, Any]:
        """Return the answers at the places that always gave the same one."""
        return {reading: value for reading, value in self.answers.items() if reading not in self._unsteady}

    def only_raised(self, error: BaseException) -> bool:
        """Return whether a changed answer led to a `raise` in the user's code, and to nothing else."""
        if isinstance(error, SystemExit):
            return self.calls_since == 0
        frames = []
        at = error.__traceback__
        while at is not None:
            frames.append(at)
            at = at.tb_next
        inner = frames[-1]
        raises = inner.tb_frame.f_code.co_code[inner.tb_lasti] == dis.opmap["RAISE_VARARGS"]
        return raises and self.calls_since == 0 and any(frame.tb_frame.f_code is self._code for frame in frames)

    def _answer(self, reading: ValueReading, code: CodeType | None, value: Any) -> Any:
        self.may_decide.setdefault(reading, value)
        if reading == self._changed and self._change is not None:
            if not self._changes:
                self._code, self.calls_since = code, 0
            self._changes += 1
            if self._changes > _MOST_CHANGES:
                raise EndlessError
            value = self._change(value)
        return value if reading.function in _PLAIN else _watched(value)


_PLAIN: Final = frozenset({"__int__", "__float__", "__index__", "__complex__"})
"""Readers whose results Python accepts only as its own number types."""


def decision(
    notes: Notes, run: Callable[[Notes], Any], alike: Callable[[Any], bool], *, most: int = 40
) -> ValueReading | None:
    """Return the first read that decides what is executed; None where none does.

    `run` runs the model with other answers, `alike` returns whether that run did the same. More reads than `most` are
    not tested: then the first of the rest counts as deciding.
    """
    known = _KNOWN.get()
    reads = [(reading, value) for reading, value in notes.may_decide.items() if reading not in known]
    for number, (reading, value) in enumerate(reads):
        if number == most:
            return reading
        outcomes = [_outcome(Notes(reading, change), run, alike) for change in _changes(value)]
        if False in outcomes or (outcomes and not any(outcomes)):
            return reading
    return None


def _outcome(notes: Notes, run: Callable[[Notes], Any], alike: Callable[[Any], bool]) -> bool | None:
    """Return whether a run with another answer did the same, or only raised; None if it failed in another way."""
    try:
        with _quiet():
            result = run(notes)
    except EndlessError:
        return False
    # The user's forward may raise anything on an answer that it never had.
    except (Exception, SystemExit) as error:
        return True if notes.only_raised(error) else None
    return alike(result)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress output, log lines and warnings of a forward about answers that it never had."""

    def stop(*_args: object, **_kwargs: object) -> None:
        raise SystemExit

    before, level = sys.breakpointhook, logging.root.manager.disable
    sys.breakpointhook = stop
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        sys.breakpointhook = before
        logging.disable(level)


_MOVES: Final = ((1, 1), (0, 0), (0, 1e6), (0, -1e6), (-1, 0), (0.5, 0), (2, 0))
"""Pairs of a factor and a summand that turn a number into another answer."""


def _changes(value: Any) -> Sequence[Callable[[Any], Any]]:
    """Return functions from the value to other answers; none for a text."""
    match value:
        case str():
            return ()
        case bool():
            return (lambda old: not old,)
        case int():
            return (lambda old: old + 1, lambda old: old - 1, lambda _old: 0)
        case float() | complex():
            return tuple(partial(_moved, factor, shift) for factor, shift in _MOVES)
        case list():
            return tuple(_each(change) for change in _changes(next(iter(value), 0.0)))
        case np.ndarray():
            return (lambda old: ~old,) if value.dtype == bool else (lambda old: old + 1, lambda old: old * 0 - 1)
        case _:
            return ()


def _moved(factor: float, shift: float, old: float) -> float:
    return factor * old + shift


def _each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(values: Any) -> Any:
        return [changed(value) for value in values] if isinstance(values, list) else change(values)

    return changed


def _same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other or one != one)


_KNOWN: ContextVar[frozenset[ValueReading]] = ContextVar("espalier_known_readings", default=frozenset())
"""Reads that are known to decide nothing."""


class Answering(TorchFunctionMode):
    """Within the context, the places in `answers` read these values, even from tensors with no or other data."""

    def __init__(self, answers: Mapping[ValueReading, Any]) -> None:
        super().__init__()
        self._answers = answers

    @classmethod
    def of(cls, answers: Mapping[ValueReading, Any]) -> AbstractContextManager[object]:
        """Return the context; a null context where there are no answers."""
        return cls(answers) if answers else nullcontext()

    def __enter__(self) -> Self:
        self._token = _KNOWN.set(_KNOWN.get() | self._answers.keys())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)  # type: ignore[no-untyped-call]
        _KNOWN.reset(self._token)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, unless its answer is known."""
        name = str(getattr(func, "__name__", ""))
        if name in READERS and (reading := _place(name)[0]) in self._answers:
            return self._answers[reading]
        return func(*args, **dict(kwargs or {}))


# ---- numbers that were read

_NOTES: ContextVar[Notes | None] = ContextVar("espalier_notes", default=None)


@contextmanager
def noting(notes: Notes) -> Iterator[None]:
    """Record comparisons of numbers that were read, within the context."""
    token = _NOTES.set(notes)
    try:
        yield
    finally:
        _NOTES.reset(token)


class _Float(float):
    """A float that was read from a tensor."""


class _Int(int):
    """An int that was read from a tensor."""


def _watched(value: Any) -> Any:
    """Return a number whose comparisons are recorded; other values unchanged."""
    kind = {float: _Float, int: _Int}.get(type(value))
    if kind is not None:
        return kind(value)
    return [_watched(one) for one in value] if isinstance(value, list) else value


def _comparing(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def compare(*values: Any) -> Any:
        result, notes = plain(*values), _NOTES.get()
        return result if notes is None or result is NotImplemented else notes.compared(name, result)

    return compare


def _computing(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: _watched(plain(*values))


for _kind, _base in ((_Float, float), (_Int, int)):
    for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__"):
        setattr(_kind, _name, _comparing(_name, getattr(_base, _name)))
    for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
        setattr(_kind, f"__{_name}__", _computing(getattr(_base, f"__{_name}__")))
    setattr(_kind, "__hash__", _base.__hash__)  # noqa: B010 - Python takes it away from a class with `__eq__`


# ---- where


def caller() -> str:
    """Return file and line of the innermost frame outside torch and the recorder."""
    return _place("")[0].at


_OWN: Final = frozenset({__name__, f"{__package__}.recorder"})


def _place(function: str) -> tuple[ValueReading, CodeType | None]:
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module not in _OWN and module.partition(".")[0] != "torch":
            return ValueReading(function, f"{frame.f_code.co_filename}:{frame.f_lineno}"), frame.f_code
        frame = frame.f_back  # type: ignore[assignment]
    return ValueReading(function, ""), None
