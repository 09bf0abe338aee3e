"""What `inline` makes: functions that exist only as code to be merged into kernels.

numba compiles every function for use from Python too: wrappers, a full optimization, machine code. For a part that is
work for nothing, since it is merged into each kernel before that is optimized, and it was more than a third of the time
that kernels took to compile. A part ends where its LLVM module is built and checked.

This leans on more names inside numba than the rest of the layer (it is pinned): the compiler's passes, the code library
and the way a dispatcher finds what it compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

OPTIONS = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": None,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


class Part(CPUDispatcher):  # type: ignore[misc]
    """A function for kernels. `py_func` is what it was made from."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self.py_func.__name__} is a part of kernels, which Python cannot call")


def part(function: Callable[..., Any]) -> Part:
    """A part from its source."""
    return Part(py_func=function, locals={}, targetoptions=dict(OPTIONS), pipeline_class=_Compiler)


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Code that is linked into that of kernels and never run by itself."""

    def _optimize_final_module(self) -> None:
        """Nothing: kernels optimize it, merged."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


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


class _Compiler(CompilerBase):  # type: ignore[misc]
    """numba's passes, without machine code at their end."""

    def define_pipelines(self) -> list[Any]:
        state = self.state
        state.flags.no_compile = True
        state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
        passes = DefaultPassBuilder.define_nopython_pipeline(state)
        passes.add_pass_after(_Offer, NativeLowering)
        passes.finalize()
        return [passes]
