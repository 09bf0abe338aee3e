"""The function of a kernel that Python calls: takes numbers off Python, lets go of the GIL, and gives the result back.

It has the form METH_FASTCALL of CPython (https://docs.python.org/3/c-api/structures.html#c.METH_FASTCALL). An array
comes as the address of its data and its sizes, one after the other: `Kernel` has checked the rest.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once_value, for_range, pack_array
from numba.np.arrayobj import populate_array

from hf2q.simd.typed import i8, i32, i64

CALL = ".call"
"""Comes after the name of the kernel."""

OBJECT = i8.as_pointer()


def add_wrapper(ctx: Any, library: Any, fndesc: Any) -> None:
    """Add it to a kernel's library. Errors: TypeError for a result that is neither nothing nor a number."""
    module = library.create_ir_module(fndesc.llvm_func_name + CALL)
    kind = ir.FunctionType(OBJECT, [OBJECT, OBJECT.as_pointer(), i64])
    function = ir.Function(module, kind, fndesc.llvm_func_name + CALL)
    b = ir.IRBuilder(function.append_basic_block())
    _, values, count = function.args
    wanted = sum(_words(t) for t in fndesc.argtypes)
    with b.if_then(b.icmp_signed("!=", count, i64(wanted)), likely=False):
        b.ret(_fail(b, "PyExc_TypeError", f"expected {wanted} numbers"))
    numbers = _Numbers(b, values)
    arguments = [_argument(ctx, b, t, numbers) for t in fndesc.argtypes]
    with b.if_then(b.icmp_signed("!=", _call(b, "PyErr_Occurred", OBJECT), OBJECT(None)), likely=False):
        b.ret(OBJECT(None))
    callee = ctx.declare_function(module, fndesc)
    thread = _call(b, "PyEval_SaveThread", OBJECT)
    status, result = ctx.call_conv.call_function(b, callee, fndesc.restype, fndesc.argtypes, arguments)
    _call(b, "PyEval_RestoreThread", ir.VoidType(), thread)
    with b.if_then(status.is_error, likely=False):
        b.ret(_fail(b, "PyExc_RuntimeError", f"kernel {fndesc.qualname} raised an error"))
    b.ret(_result(b, fndesc.restype, result))
    library.add_ir_module(module)


def _words(t: Any) -> int:
    """How many numbers an argument comes as."""
    return 1 + t.ndim if isinstance(t, types.Array) else 1


class _Numbers:
    """The arguments one after the other."""

    def __init__(self, b: Any, values: Any) -> None:
        self._b, self._values, self._at = b, values, 0

    def take(self) -> Any:
        self._at += 1
        return self._b.load(self._b.gep(self._values, [i64(self._at - 1)]))


def _argument(ctx: Any, b: Any, t: Any, numbers: _Numbers) -> Any:
    if isinstance(t, types.Float):
        number = _call(b, "PyFloat_AsDouble", ir.DoubleType(), numbers.take())
        return ctx.cast(b, number, types.float64, t)
    if isinstance(t, types.Integer):
        return ctx.cast(b, _call(b, "PyLong_AsLongLong", i64, numbers.take()), types.int64, t)
    data = _call(b, "PyLong_AsLongLong", i64, numbers.take())
    sizes = [_call(b, "PyLong_AsLongLong", i64, numbers.take()) for _ in range(t.ndim)]
    array = ctx.make_array(t)(ctx, b)
    each = ctx.get_abi_sizeof(ctx.get_data_type(t.dtype))
    strides: list[Any] = []
    step = i64(each)
    for size in reversed(sizes):
        strides.insert(0, step)
        step = b.mul(step, size)
    data = b.inttoptr(data, ctx.get_data_type(t.dtype).as_pointer())
    populate_array(
        array,
        data=data,
        shape=pack_array(b, sizes),
        strides=pack_array(b, strides),
        itemsize=i64(each),
        meminfo=None,
    )
    return array._getvalue()


def _result(b: Any, t: Any, value: Any) -> Any:
    if t == types.none:
        text = _text(b.module, "")
        return _call(b, "Py_BuildValue", OBJECT, b.bitcast(text, OBJECT))  # None, counted
    if isinstance(t, types.Boolean):
        return _call(b, "PyBool_FromLong", OBJECT, b.zext(value, i64))
    if isinstance(t, types.Integer) and t.bitwidth <= 64:
        wide = value if t.bitwidth == 64 else b.sext(value, i64) if t.signed else b.zext(value, i64)
        unsigned = t.bitwidth == 64 and not t.signed
        return _call(b, "PyLong_FromUnsignedLongLong" if unsigned else "PyLong_FromLongLong", OBJECT, wide)
    if isinstance(t, types.Float):
        wide = value if t.bitwidth == 64 else b.fpext(value, ir.DoubleType())
        return _call(b, "PyFloat_FromDouble", OBJECT, wide)
    raise TypeError(f"a kernel gives nothing or a number, not {t}")


def _fail(b: Any, kind: str, message: str) -> Any:
    """Set an error; gives what the function returns then."""
    slot = b.module.globals.get(kind)
    if slot is None:
        slot = ir.GlobalVariable(b.module, OBJECT, kind)
    _call(b, "PyErr_SetString", ir.VoidType(), b.load(slot), b.bitcast(_text(b.module, message), OBJECT))
    return OBJECT(None)


RESHAPE = "numba_attempt_nocopy_reshape"


def add_reshape(module: Any) -> None:
    """What `reshape` of an array calls, in numba's library of C functions: so kernels need none of that.

    It gives the strides of another shape and 1, or 0 for an array that is not contiguous.
    Source: numba, numba/_helperlib.c, `numba_attempt_nocopy_reshape`.
    """
    words = i64.as_pointer()
    kind = ir.FunctionType(i32, [i64, words, words, i64, words, words, i64, i32])
    function = ir.Function(module, kind, RESHAPE)
    b = ir.IRBuilder(function.append_basic_block())
    ndim, sizes, strides, new_ndim, new_sizes, new_strides, each, _ = function.args
    step = alloca_once_value(b, each)
    with for_range(b, ndim) as loop:
        at = b.sub(b.sub(ndim, loop.index), i64(1))
        size, stride = b.load(b.gep(sizes, [at])), b.load(b.gep(strides, [at]))
        wrong = b.and_(b.icmp_signed("!=", stride, b.load(step)), b.icmp_signed("!=", size, i64(1)))
        with b.if_then(wrong, likely=False):
            b.ret(i32(0))
        b.store(b.mul(b.load(step), size), step)
    b.store(each, step)
    with for_range(b, new_ndim) as loop:
        at = b.sub(b.sub(new_ndim, loop.index), i64(1))
        b.store(b.load(step), b.gep(new_strides, [at]))
        b.store(b.mul(b.load(step), b.load(b.gep(new_sizes, [at]))), step)
    b.ret(i32(1))


def _text(module: Any, text: str) -> Any:
    data = bytearray(text.encode() + b"\0")
    kind = ir.ArrayType(i8, len(data))
    held = ir.GlobalVariable(module, kind, module.get_unique_name("hf2q.text"))
    held.linkage, held.global_constant, held.initializer = "private", True, ir.Constant(kind, data)
    return held


def _call(b: Any, name: str, result: Any, *args: Any) -> Any:
    function = b.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(result, [a.type for a in args], var_arg=name == "Py_BuildValue")
        function = ir.Function(b.module, kind, name)
    return b.call(function, args)
