"""Objects put into memory by LLVM, where `elf` does not apply: macOS, Windows, ARM, an unknown relocation."""

from __future__ import annotations

from typing import Any

from llvmlite import binding

from hf2q.simd.image import Code


def addresses(code: Code) -> tuple[int, int, Any]:
    """Where the kernel and the function that Python calls begin, and what keeps them there.

    Errors: `loader.Unloadable` when LLVM does not find them in the object.
    """
    from hf2q.simd.loader import Unloadable

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    try:
        machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine()
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        engine.add_object_file(binding.ObjectFileRef.from_data(code.body))
        engine.finalize_object()
    except RuntimeError as problem:
        raise Unloadable(str(problem)) from problem
    entry, call = (engine.get_function_address(str(name)) for name in (code.entry, code.call))
    if not entry or not call:
        raise Unloadable(f"the object defines no {code.call if entry else code.entry}")
    return entry, call, engine
