"""The pages about receipts and provenance name every field and key, and nothing else."""

import re
from pathlib import Path

import msgspec

from hf2q.convert import provenance
from hf2q.convert.receipt import Receipt

ROOT = Path(__file__).resolve().parent.parent / "docs" / "reference"
LEAVES = {"Settings"}
"""Structs that the page describes as a whole."""


def fields_of(kind, path=""):
    """Every path of a receipt, as the page writes it."""
    if isinstance(kind, msgspec.inspect.StructType) and kind.cls.__name__ not in LEAVES:
        for field in kind.fields:
            yield from fields_of(field.type, f"{path}.{field.encode_name}".lstrip("."))
    elif isinstance(kind, msgspec.inspect.VarTupleType):
        yield from fields_of(kind.item_type, f"{path}[]")
    elif isinstance(kind, msgspec.inspect.DictType) and isinstance(kind.value_type, msgspec.inspect.StructType):
        yield from fields_of(kind.value_type, f"{path}.TYPE")
    elif isinstance(kind, msgspec.inspect.UnionType) and any(
        isinstance(one, msgspec.inspect.StructType) for one in kind.types
    ):
        yield path
        for one in kind.types:
            if isinstance(one, msgspec.inspect.StructType):
                yield from fields_of(one, path)
    else:
        yield path


def named_in(page):
    """What the first cells of the page's tables name."""
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def test_every_field_of_a_receipt_is_described():
    named = named_in("receipt.md")
    assert len(named) == len(set(named))
    assert set(named) == set(fields_of(msgspec.inspect.type_info(Receipt)))


def test_every_key_and_option_is_described():
    keys = {v for v in vars(provenance).values() if isinstance(v, str) and re.fullmatch(r"hf2q\.[a-z0-9_.]+", v)}
    keys -= {v for v in keys if v.startswith(("hf2q.convert", "hf2q.formats"))}
    assert set(named_in("provenance.md")) == keys
    [row] = [line for line in (ROOT / "provenance.md").read_text().splitlines() if line.startswith("| `hf2q.options`")]
    assert set(re.findall(r"`([^`]+)`", row.split(" | ")[1])) == set(provenance.Settings.__struct_fields__)
