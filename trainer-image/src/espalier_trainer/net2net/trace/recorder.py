"""The recorder: hooks on every module and a torch-function mode that together record a `Graph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from espalier_trainer.net2net.blocks import STACK, GrownStack, added
from espalier_trainer.net2net.modules import tensors_in
from espalier_trainer.net2net.trace.graph import Graph, Operation, Span, Stack, without_looks
from espalier_trainer.net2net.trace.operators import (
    NO_CHANGE,
    PASSING_ON,
    SEVERING,
    SHAPE_KEEPING,
    function_attributes,
    function_operator,
    is_leaf,
    module_attributes,
    module_operator,
    shape_only,
    snake_case,
    written_arguments,
)
from espalier_trainer.net2net.trace.reading import READERS, EndlessError, Notes, caller, noting


class Recorder(TorchFunctionMode):
    """Records one forward of `model`: use it as a context around the forward, then call `graph()`.

    `weights` maps the id of each parameter or buffer that the run uses to its path, `sizes` each path to its number
    of trainable scalars (0 for buffers, frozen parameters, and all but the first path of a tied parameter). `notes`
    records values read into Python. A run of more than `most` operations ends with `EndlessError`.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[int, str],
        sizes: Mapping[str, int],
        notes: Notes,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self._notes, self._most = notes, most
        self._model = model
        self._weights = weights
        self._unused = dict(sizes)
        self._paths = {path for path, _ in model.named_modules()}
        self._operations: dict[str, Operation] = {}
        self._outputs: tuple[str, ...] = ()
        self._calls: dict[str, int] = {}
        self._results: dict[str, str] = {}
        self._stack_inputs: dict[str, str] = {}
        self._stacks: dict[str, Stack] = {}
        self._looked_at: set[str] = set()
        """Operations whose values were read."""
        self._severed: dict[str, list[str]] = {}
        self._growing: set[str] = set()
        self._constant: set[str] = set()
        """Parameters and buffers, and operations on these alone."""
        self._makers: dict[int, str] = {}
        self._alive: list[Tensor] = []  # prevents reuse of ids
        self._scopes: list[str] = []
        self._open_stack: str | None = None
        self._spans: dict[str, list[Span]] = {}
        self._given: list[tuple[str, ...]] = []
        self._leaf: tuple[str, nn.Module, tuple[str, ...]] | None = None
        self._own = False
        self._in_hooks = False
        """Whether hooks of the model's own run: values that only they compute count as reads, too."""
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        # Where a module refuses its hook, remove those of the others.
        with ExitStack() as hooks:
            for path, module in self._model.named_modules():
                hooks.callback(module.register_forward_pre_hook(partial(self._enter, path), with_kwargs=True).remove)
                if module._forward_hooks:
                    hooks.callback(module.register_forward_hook(self._leave_hooks).remove)
                # Before the model's own hooks: their operations come after the layers that growth adds to the module.
                leave = module.register_forward_hook(partial(self._leave, path), with_kwargs=True, prepend=True)
                hooks.callback(leave.remove)
            hooks.enter_context(noting(self._notes))
            super().__enter__()  # type: ignore[no-untyped-call]
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def inputs(self, named: Mapping[str, Any]) -> None:
        """Record the forward's arguments as `Input` operations."""
        for argument, value in named.items():
            for tensor in tensors_in(value):
                self._add(self._free_name("", argument), "Input", tensor)

    def outputs(self, result: Any) -> None:
        """Record the forward's result."""
        self._outputs = tuple(dict.fromkeys(self._read(result)))

    def graph(self, *, real: bool) -> Graph:
        """Return the recorded graph; `real` is False for a run on meta tensors."""
        return Graph(
            operations=without_looks(self._operations, self._looked_at, self._outputs),
            outputs=self._outputs,
            calls=self._calls,
            results=self._results,
            stacks=self._stacks,
            real=real,
            severed={path: tuple(dict.fromkeys(found)) for path, found in self._severed.items()},
            spans={path: tuple(spans) for path, spans in self._spans.items()},
        )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        run = shape_only if func in SHAPE_KEEPING and args and args[0].is_meta else func
        if self._own or self._leaf is not None or not self._scopes:
            return run(*args, **given)
        name = str(getattr(func, "__name__", ""))
        if func in SEVERING or (name == "_set_grad_enabled" and args[:1] == (False,)):
            self._severed.setdefault(self._scopes[-1], []).append(caller())
        if name in READERS:
            read = self._read(args)
            self._looked_at.update(read)
            return self._notes.note(name, run(*args, **given), grows=bool(self._growing.intersection(read)))
        # Read before the call: an in-place operation makes its input stand for its output.
        reads = self._read((args, given))
        result = run(*args, **given)
        if name in NO_CHANGE and args and result is args[0]:
            result = self._separate(result)
        written = args[0] if name == "__setitem__" else result
        if tensors_in(written):
            operator = function_operator(func)
            name = self._free_name(self._scopes[-1], snake_case(operator))
            attributes = function_attributes(operator, args, given)
            self._add(
                name,
                operator,
                written,
                reads,
                attributes,
                arguments=written_arguments(args, given),
                written_at=caller(),
            )
        return result

    def _enter(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if isinstance(module, GrownStack):
            self._enter_stack(path, args[0])
        if self._leaf is not None:
            return
        self._calls[path] = self._calls.get(path, 0) + 1
        self._notes.calls_since += 1
        self._scopes.append(path)
        self._given.append(self._made((args, kwargs)))
        if added(module) is not None and self._open_stack is None:
            self._open_stack = self._added_name(path)
        if is_leaf(module):
            self._leaf = (path, module, self._read((args, kwargs)))

    def _leave(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Any:
        if self._leaf is not None and self._leaf[0] != path:
            return None
        self._in_hooks = len(module._forward_hooks) > 1
        replaced = None
        if self._leaf is not None:
            passed_on = self._leaf[2] and module_operator(module) in PASSING_ON
            if passed_on and isinstance(result, Tensor) and any(result is given for given in args):
                replaced = result = self._separate(result)
            self._finish_leaf(result)
        elif isinstance(module, GrownStack) and self._open_stack == path:
            self._open_stack = None
            self._stacks[path] = Stack(self._stack_inputs[path], self._read(result)[0])
        elif not isinstance(module._modules.get(STACK), GrownStack):
            self._note_result(path, result)
        span = Span(self._given.pop(), self._made(result))
        self._spans.setdefault(path, []).append(span)
        reads = added(module)
        if reads is not None and self._open_stack == self._added_name(path):
            self._stacks[self._open_stack] = Stack(span.inputs[reads], span.outputs[0])
            self._open_stack = None
        self._scopes.pop()
        return replaced

    def _leave_hooks(self, _module: nn.Module, _args: object, _result: object) -> None:
        """Record that the model's own hooks of a module have run."""
        self._in_hooks = False

    def _separate(self, passed_on: Tensor) -> Tensor:
        """Return a separate view, so that later readers of an input are not mistaken for readers of the output."""
        self._own = True
        view = passed_on.view(passed_on.shape)
        self._own = False
        return view

    def _added_name(self, path: str) -> str:
        again = self._calls[path] - 1
        return f"{path}:{again}" if again else path

    def _enter_stack(self, path: str, given: Tensor) -> None:
        """Record that a host has computed its own output, which its grown blocks read next."""
        host = path.rpartition(".")[0]
        if self._leaf is not None and self._leaf[0] == host:
            self._finish_leaf(given)
        else:
            self._note_result(host, given)
        if self._leaf is None and self._open_stack is None:  # layers grown in an added block belong to that block
            self._stack_inputs[path] = self._read(given)[0]
            self._open_stack = path

    def _finish_leaf(self, result: Any) -> None:
        if self._leaf is None:
            return
        path, module, reads = self._leaf
        self._leaf = None
        name = self._free_name("", path or snake_case(module_operator(module)), module=True)
        parameters = sum(
            self._take(f"{path}.{own}" if path else own)
            for own, _ in module.named_parameters(remove_duplicate=False)
            if not own.startswith(f"{STACK}.")
        )
        self._add(name, module_operator(module), result, reads, module_attributes(module), parameters, path)
        self._note_result(path, result)

    def _note_result(self, path: str, result: Any) -> None:
        if isinstance(result, Tensor) and id(result) in self._makers:
            self._results[path] = self._makers[id(result)]

    def _add(
        self,
        name: str,
        operator: str,
        result: Any,
        inputs: tuple[str, ...] = (),
        attributes: Mapping[str, Any] | None = None,
        parameters: int = 0,
        module: str | None = None,
        arguments: str = "",
        written_at: str = "",
    ) -> None:
        if self._most is not None and len(self._operations) > self._most:
            raise EndlessError
        tensors = tensors_in(result)
        self._own = True
        shape = tuple(result.shape) if isinstance(result, Tensor) else None
        given = operator == "Input" and any(tensor.is_floating_point() for tensor in tensors)
        self._own = False
        # Growth changes no value that depends only on masks, lengths and buffers.
        if given or operator == "Parameter" or module is not None or self._growing.intersection(inputs):
            self._growing.add(name)
        if operator in ("Parameter", "Buffer") or (module is None and inputs and self._constant.issuperset(inputs)):
            self._constant.add(name)
        if self._in_hooks:
            self._looked_at.add(name)
        self._operations[name] = Operation(
            name=name,
            operator=operator,
            attributes=dict(attributes or {}),
            inputs=inputs,
            parameters=parameters,
            scope=self._scopes[-1] if self._scopes else "",
            module=module,
            shape=shape,
            stack=self._open_stack,
            arguments=arguments,
            in_hook=self._in_hooks,
            written_at=written_at,
        )
        for tensor in tensors:
            self._makers[id(tensor)] = name
            self._alive.append(tensor)

    def _read(self, values: Any) -> tuple[str, ...]:
        """Return the operations that made the tensors among `values`; record a parameter read directly as one."""
        found = []
        for tensor in tensors_in(values):
            key = id(tensor)
            if key not in self._makers and key in self._weights:
                path = self._weights[key]
                size = self._take(path)
                operator = "Parameter" if isinstance(tensor, nn.Parameter) or size else "Buffer"
                self._own = True
                shape = tuple(tensor.shape)
                self._own = False
                name = self._free_name("", path)
                self._add(name, operator, tensor, (), {"shape": shape}, size, written_at=caller())
            if key in self._makers:
                found.append(self._makers[key])
        return tuple(found)

    def _made(self, values: Any) -> tuple[str, ...]:
        """Return, for each tensor among `values`, the operation that made it; "" where none did."""
        return tuple(self._makers.get(id(tensor), "") for tensor in tensors_in(values))

    def _take(self, path: str) -> int:
        """Return the number of trainable scalars at `path` on the first call for it, 0 after that."""
        return self._unused.pop(path, 0)

    def _free_name(self, scope: str, base: str, *, module: bool = False) -> str:
        """Return an unused name: `layer1.0.add`, then `layer1.0.add_1`; for a module `relu`, then `relu:1`."""
        stem = f"{scope}.{base}" if scope else base
        name, again = stem, 0
        while name in self._operations or (not module and name in self._paths):
            again += 1
            name = f"{stem}:{again}" if module else f"{stem}_{again}"
        return name
