"""A linker for what LLVM makes of kernels: ELF objects for x86-64, position-independent.

One object becomes one image: code and constants one after the other, then a slot of eight bytes for every address that
is known in memory only, and a jump through its slot for every function outside. Writable data would need another page;
kernels have none, so it is refused, like every relocation that is not listed here. Whoever is refused leaves the object
to LLVM.
Source: System V Application Binary Interface, AMD64 Architecture Processor Supplement, 4.4 (relocations); the ELF
specification, Tool Interface Standard 1.2, for headers, sections and symbols.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hf2q.simd.image import Code

MAGIC = b"\x7fELF\x02\x01\x01"
"""64-bit, little-endian, version 1."""
RELOCATABLE, X86_64 = 1, 62
PROGBITS, SYMTAB, RELA, NOBITS, UNWIND = 1, 2, 4, 8, 0x70000001
WRITE, ALLOCATE = 1, 2
UNDEFINED, LAST_SECTION = 0, 0xFF00

NONE, ABSOLUTE, RELATIVE, CALLED, SLOT, SLOT_X, SLOT_REX = 0, 1, 2, 4, 9, 41, 42
"""R_X86_64_NONE, _64, _PC32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX."""


class Unlinkable(Exception):
    """An object that this linker does not know how to link."""


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


def link(data: bytes, entry: str, call: str) -> Code:
    """The image of an object. Errors: Unlinkable."""
    try:
        return _Linker(data).image(entry, call)
    except (struct.error, IndexError, UnicodeDecodeError) as problem:
        raise Unlinkable(f"not a sound ELF object: {problem}") from problem


class _Linker:
    def __init__(self, data: bytes) -> None:
        self._data = data
        kind, machine = struct.unpack_from("<HH", data, 16)
        if not data.startswith(MAGIC) or (kind, machine) != (RELOCATABLE, X86_64):
            raise Unlinkable("not a relocatable ELF object for x86-64")
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        if size != 64:
            raise Unlinkable(f"section headers of {size} bytes")
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * k) for k in range(count)]
        strings = raw[names][4]
        self._sections = [
            _Section(self._string(strings + name), kind, flags, offset, length, link, info, max(1, align))
            for name, kind, flags, _, offset, length, link, info, align, _ in raw
        ]
        self._symbols = self._read_symbols()
        self._image = bytearray()
        self._places: dict[int, int] = {}  # where sections begin
        self._slots: dict[str, int] = {}  # of names outside
        self._jumps: dict[str, int] = {}
        self._imports: dict[str, list[int]] = {}
        self._bases: list[tuple[int, int]] = []

    def _string(self, at: int) -> str:
        return self._data[at : self._data.index(b"\0", at)].decode()

    def _read_symbols(self) -> list[_Symbol]:
        found = []
        for section in self._sections:
            if section.kind != SYMTAB:
                continue
            strings = self._sections[section.link].offset
            for at in range(section.offset, section.offset + section.size, 24):
                name, _, _, where, value, _ = struct.unpack_from("<IBBHQQ", self._data, at)
                found.append(_Symbol(self._string(strings + name), where, value))
        return found

    def image(self, entry: str, call: str) -> Code:
        for number, section in enumerate(self._sections):
            self._place(number, section)
        for section in self._sections:
            if section.kind == RELA and section.info in self._places:
                for at in range(section.offset, section.offset + section.size, 24):
                    self._relocate(self._places[section.info], *struct.unpack_from("<QIIq", self._data, at))
        starts = {symbol.name: symbol for symbol in self._symbols if symbol.section in self._places}
        missing = [name for name in (entry, call) if name not in starts]
        if missing:
            raise Unlinkable(f"the object defines no {missing[0]}")
        return Code(
            kind="image",
            entry=self._inside(starts[entry]),
            call=self._inside(starts[call]),
            body=bytes(self._image),
            imports=self._imports,
            bases=self._bases,
        )

    def _place(self, number: int, section: _Section) -> None:
        """Put a section into the image, if it belongs into memory."""
        if not section.flags & ALLOCATE or section.kind == UNWIND or section.name == ".eh_frame" or not section.size:
            return
        if section.kind not in (PROGBITS, NOBITS):
            raise Unlinkable(f"section {section.name} is of kind {section.kind}")
        if section.flags & WRITE and not section.name.startswith(".data.rel.ro"):
            raise Unlinkable(f"section {section.name} is written when the code runs")
        if section.align > 4096:
            raise Unlinkable(f"section {section.name} wants to begin at a multiple of {section.align}")
        self._pad(section.align)
        self._places[number] = len(self._image)
        held = self._data[section.offset : section.offset + section.size]
        self._image += bytes(section.size) if section.kind == NOBITS else held

    def _pad(self, align: int) -> None:
        self._image += bytes(-len(self._image) % align)

    def _inside(self, symbol: _Symbol) -> int:
        return self._places[symbol.section] + symbol.value

    def _relocate(self, place: int, offset: int, kind: int, number: int, addend: int) -> None:
        symbol, at = self._symbols[number], place + offset
        outside = symbol.section == UNDEFINED
        if not outside and symbol.section not in self._places:
            raise Unlinkable(f"{symbol.name or 'a name'} lies in a section that is not in memory")
        if kind == NONE:
            return
        if kind == ABSOLUTE:
            if not outside:
                self._bases.append((at, self._inside(symbol) + addend))
            elif addend:
                raise Unlinkable(f"the address of {symbol.name} plus {addend}")
            else:
                self._imports.setdefault(symbol.name, []).append(at)
            return
        if kind in (SLOT, SLOT_X, SLOT_REX):
            target = self._slot(symbol)
        elif kind in (RELATIVE, CALLED) and not outside:
            target = self._inside(symbol)
        elif kind == CALLED:
            target = self._jump(symbol)
        else:
            raise Unlinkable(f"relocation {kind} of {symbol.name or 'a section'}")
        struct.pack_into("<i", self._image, at, target + addend - at)

    def _slot(self, symbol: _Symbol) -> int:
        """Where the address of a symbol will be."""
        key = symbol.name if symbol.section == UNDEFINED else f"{symbol.section}+{symbol.value}"
        if key not in self._slots:
            self._pad(8)
            at = self._slots[key] = len(self._image)
            self._image += bytes(8)
            if symbol.section == UNDEFINED:
                self._imports.setdefault(symbol.name, []).append(at)
            else:
                self._bases.append((at, self._inside(symbol)))
        return self._slots[key]

    def _jump(self, symbol: _Symbol) -> int:
        """Where a jump to a function outside lies: jmp through its slot, whose distance counts from behind the jump."""
        if symbol.name not in self._jumps:
            slot = self._slot(symbol)
            at = self._jumps[symbol.name] = len(self._image)
            self._image += b"\xff\x25" + struct.pack("<i", slot - (at + 6))
        return self._jumps[symbol.name]
