"""From Python functions to object code, by numba. Imported when something has to be compiled, and not before.

numba compiles every function for use from Python: wrappers, an optimization of its own, machine code in its own memory.
Parts (`inline`) need none of that, since they are merged into each kernel before that is optimized: a part ends where
its LLVM module is built and checked. A kernel becomes object code (`wrapper` adds what Python calls), which goes to the
disk and is put into memory by `loader`.

numba compiles without fast math and, at this layer, without contraction: rounding is exactly what the source says.

This leans on names inside numba (it is pinned): the compiler's passes, the code library and the way a dispatcher finds
what it compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding
from numba import config, from_dtype, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic

import hf2q.simd.elements
import hf2q.simd.operators  # noqa: F401  (both register with numba)
from hf2q.simd.arguments import Argument
from hf2q.simd.elf import Unlinkable, link
from hf2q.simd.image import Code
from hf2q.simd.machine import MACHINE, refuse_other_cpu
from hf2q.simd.typed import Vec
from hf2q.simd.wrapper import CALL, RESHAPE, add_reshape, add_wrapper

OPTIONS = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": None,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,  # kernels own no memory, so nothing is counted
}

refuse_other_cpu(config.CPU_NAME, config.CPU_FEATURES)
if MACHINE.cpu is not None:
    config.CPU_NAME, config.CPU_FEATURES = MACHINE.cpu, MACHINE.added


# ------------------------------------------------------------------------------------- what kernels name, for numba


@cache
def type_of_vector(kind: str, n: int) -> Any:
    """The type of the name of a vector type."""
    return types.TypeRef(Vec(kind, n))


def type_of_part(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The type of the name of a part, and what must be kept alive as long as it is used."""
    dispatcher = CPUDispatcher(
        py_func=function, locals={}, targetoptions={**OPTIONS, "forceinline": True}, pipeline_class=_PartCompiler
    )
    return types.Dispatcher(dispatcher), dispatcher


def type_of_operation(build: Callable[..., Any]) -> Any:
    """The type of the name of an operation: a function that numba types and builds by `build`."""

    def typed(context: Any, *args: Any) -> Any:
        result, wanted, make = build(*args)

        def generate(ctx: Any, b: Any, sig: Any, values: Any) -> Any:
            made = make(ctx, b, *values)
            return ctx.get_dummy_value() if result == types.none else made

        return result(*wanted), generate

    typed.__name__, typed.__doc__ = build.__name__, build.__doc__
    # numba reads the parameter names, and refuses *args
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.Signature([first, *inspect.signature(build).parameters.values()])
    typed.__signature__ = signature  # type: ignore[attr-defined]
    made = intrinsic(prefer_literal=True)(typed)
    cpu_target.typing_context.refresh()
    return cpu_target.typing_context.resolve_value_type(made)


def type_of_argument(argument: Argument) -> Any:
    """numba's type of an argument of a kernel."""
    if argument.ndim is None:
        return from_dtype(np.dtype(argument.dtype))
    element = from_dtype(np.dtype(argument.dtype))
    return types.Array(element, argument.ndim, "C", readonly=argument.readonly, aligned=False)


# ------------------------------------------------------------------------------------------------------- compiling


def compile_kernel(function: Callable[..., Any], arguments: tuple[Argument, ...]) -> Code:
    """The code of a kernel. Errors: numba's, for what it cannot compile; TypeError for a result that Python cannot
    take or for code that holds addresses of this process."""
    dispatcher = CPUDispatcher(py_func=function, locals={}, targetoptions=dict(OPTIONS), pipeline_class=_KernelCompiler)
    with global_compiler_lock:
        signature = tuple(type_of_argument(argument) for argument in arguments)
        dispatcher.compile(signature)
        (compiled,) = dispatcher.overloads.values()
        library, entry = compiled.library, compiled.fndesc.llvm_func_name
        library._ensure_finalized()
        if compiled.lifted or library.has_dynamic_globals:
            raise TypeError(f"{function.__qualname__} cannot be kept: it holds addresses of this process")
        return _emit(library, entry)


def _emit(library: Any, entry: str) -> Code:
    """Code that needs no linker any more where there is one of our own for it, else an object for LLVM's."""
    module, codegen = library._final_module, library._codegen
    if any(function.name == RESHAPE and function.is_declaration for function in module.functions):
        more = codegen._create_empty_module(RESHAPE)
        add_reshape(more)
        module.link_in(binding.parse_assembly(str(more)))
    call = entry + CALL
    triple = binding.get_process_triple()
    if triple.startswith("x86_64-") and "linux" in triple:
        machine = binding.Target.from_triple(triple).create_target_machine(
            cpu=codegen._get_host_cpu_name(), features=codegen._tm_features, opt=3, reloc="pic", codemodel="small"
        )
        try:
            return link(machine.emit_object(module.clone()), entry, call)
        except Unlinkable:
            pass  # LLVM knows more
    outside = [thing.name for thing in (*module.functions, *module.global_variables) if thing.is_declaration]
    names: dict[str, list[int]] = {name: [] for name in outside if not name.startswith("llvm.")}
    return Code(kind="object", entry=entry, call=call, body=codegen._tm.emit_object(module), imports=names)


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """LLVM code that numba itself never runs."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _PartLibrary(_Library):
    """Code that is linked into that of kernels."""

    def _optimize_final_module(self) -> None:
        """Nothing: kernels optimize it, merged."""


@register_pass(mutates_CFG=False, analysis_only=False)
class _Offer(LoweringPass):  # type: ignore[misc]
    """What numba's lowering does after making machine code: name the code for callers to find."""

    _name = "hf2q_offer_part"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        key: Callable[
            [Any], None
        ] = [].append  # an object of its own of the kind that a dispatcher's table holds; nobody calls it
        state.targetctx.insert_user_function(key, state["cr"].fndesc, [state.library])
        state.reload_init.extend(state.library._reload_init)
        state["cr"] = state["cr"]._replace(cfunc=key)
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class _Wrap(LoweringPass):  # type: ignore[misc]
    """Add what Python calls."""

    _name = "hf2q_wrap_kernel"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        key: Callable[[Any], None] = [].append
        add_wrapper(state.targetctx, state.library, state["cr"].fndesc)
        state["cr"] = state["cr"]._replace(cfunc=key)
        return True


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """numba's passes, without machine code at their end."""

    library: type[_Library] = _PartLibrary
    last: type[LoweringPass] = _Offer

    def define_pipelines(self) -> list[Any]:
        state = self.state
        state.flags.no_compile = True
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        passes = DefaultPassBuilder.define_nopython_pipeline(state)
        passes.add_pass_after(self.last, NativeLowering)
        passes.finalize()
        return [passes]


class _KernelCompiler(_PartCompiler):
    library = _Library
    last = _Wrap
