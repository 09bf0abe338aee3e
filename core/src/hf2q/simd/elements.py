"""s[k] and s[k, lane] of a scratch, for numba. Imported when something is compiled."""

from __future__ import annotations

import operator
from typing import Any

from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from hf2q.simd.typed import Scratch, i64


def _place(b: Any, sig: Any, values: Any) -> Any:
    """The pointer to s[k] or s[k, lane]."""
    place, index, vec = values[0], values[1], sig.args[0].vec
    if isinstance(sig.args[1], types.BaseTuple):
        place = b.bitcast(place, vec.llvm.element.as_pointer())
        index = b.add(b.mul(b.extract_value(index, 0), i64(vec.n)), b.extract_value(index, 1))
    return b.gep(place, [index])


def _element(args: Any) -> tuple[Any, Any]:
    """The types of the element that an index names, and of the index."""
    vec = args[0].vec
    return (vec.one, types.UniTuple(types.int64, 2)) if isinstance(args[1], types.BaseTuple) else (vec, types.int64)


@infer_global(operator.getitem)
class _Get(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:
        if not isinstance(args[0], Scratch):
            return None
        item, index = _element(args)
        return signature(item, args[0], index)


@infer_global(operator.setitem)
class _Set(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:
        if not isinstance(args[0], Scratch):
            return None
        item, index = _element(args)
        return signature(types.none, args[0], index, item)


def _get(ctx: Any, b: Any, sig: Any, values: Any) -> Any:
    return b.load(_place(b, sig, values))


def _set(ctx: Any, b: Any, sig: Any, values: Any) -> Any:
    b.store(values[2], _place(b, sig, values))
    return ctx.get_dummy_value()


lower_builtin(operator.getitem, Scratch, types.Any)(_get)
lower_builtin(operator.setitem, Scratch, types.Any, types.Any)(_set)
