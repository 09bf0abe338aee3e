"""`Code`: a compiled kernel as it lies on the disk.

An image is machine code that needs no linker any more: it may lie anywhere in memory, and only the slots listed with it
have to be filled with addresses. Where `elf` cannot make one, the code is an object that LLVM puts into memory.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled code of one kernel.

    kind     "image", or "object"
    body     the bytes
    entry    where the kernel itself begins: in an image its offset, in an object its name
    call     where the function that Python calls begins
    imports  names outside, which must be known where the code is loaded; of an image each with the offsets of the slots
             that want its address
    bases    of an image: pairs of the offset of a slot and the offset in the image whose address it wants
    """

    kind: Literal["image", "object"]
    entry: int | str
    call: int | str
    body: bytes
    imports: dict[str, list[int]] = {}
    bases: list[tuple[int, int]] = []


def packed(code: Code) -> bytes:
    """The code as bytes."""
    return msgspec.msgpack.encode(code)


def unpacked(data: bytes) -> Code | None:
    """What `packed` made, or None if it is something else."""
    try:
        code = msgspec.msgpack.decode(data, type=Code)
    except msgspec.MsgspecError:
        return None
    if code.kind == "object":
        return code if isinstance(code.entry, str) and isinstance(code.call, str) else None
    return code if _inside(code) else None


def _inside(code: Code) -> bool:
    """Whether every offset lies within the image."""
    size = len(code.body)
    slots = [at for places in code.imports.values() for at in places] + [at for at, _ in code.bases]
    points = [code.entry, code.call, *(to for _, to in code.bases)]
    return all(0 <= at <= size - 8 for at in slots) and all(isinstance(at, int) and 0 <= at < size for at in points)
