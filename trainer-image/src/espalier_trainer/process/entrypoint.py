"""User functions, named in the job as `package.module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from espalier_trainer.errors import TrainerError
from espalier_trainer.process.settings import SIGNALLED


def load_entrypoint(path: str, field: str, error: type[TrainerError]) -> Callable[..., Any]:
    """Import `package.module:function`; raise `error`, naming `field` of the job, where that is not possible."""
    module_name, _, attribute = path.partition(":")
    # A job's paths have this form already; a command line's may lack either part, or begin with a dot.
    if not module_name or not attribute or module_name.startswith("."):
        raise error(f"{field}: {path!r} is not PACKAGE.MODULE:FUNCTION")
    try:
        module = importlib.import_module(module_name)
    except SyntaxError as cause:
        raise error(f"{field}: {path!r}: {module_name!r} is not valid Python ({cause})") from cause
    except ImportError as cause:
        raise error(
            f"{field}: {path!r}: cannot import {module_name!r} ({cause}); "
            "install the package in the trainer's environment or add its folder to PYTHONPATH"
        ) from cause
    except SystemExit as cause:
        if isinstance(cause.code, int) and cause.code > SIGNALLED:
            raise
        raise error(
            f"{field}: {path!r}: {module_name!r} ends the program when it is imported (sys.exit); "
            'put its script code after `if __name__ == "__main__":`'
        ) from cause
    function = getattr(module, attribute, None)
    if not callable(function):
        names = sorted(name for name, value in vars(module).items() if callable(value) and name[0] != "_")
        raise error(
            f"{field}: {path!r}: {module_name} has no function {attribute!r}; it has {', '.join(names) or 'none'}"
        )
    return function  # type: ignore[no-any-return]  # callable() narrows Any no further


def call_entrypoint(
    function: Callable[..., Any], path: str, field: str, options: dict[str, Any], error: type[TrainerError]
) -> Any:
    """Call the user's function; a `TypeError` or `ValueError` about its options becomes `error`.

    Other errors pass through: they show where they were raised, and whether a retry may help.
    """
    try:
        return function(**options)
    except (TypeError, ValueError) as cause:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items()) or "nothing"
        raise error(f"{field}: {path}({given}) failed: {type(cause).__name__}: {cause}") from cause
    except SystemExit as cause:
        if isinstance(cause.code, int) and cause.code > SIGNALLED:
            raise
        raise error(
            f"{field}: {path} ends the program (sys.exit, code {cause.code!r}); let it raise an error"
        ) from cause
