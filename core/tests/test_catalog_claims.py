"""Expanding a catalog for one model, and claiming a checkpoint's tensors with it."""

import pytest

from hf2q.catalog import claim, expand
from hf2q.convert.tensors import in_converter_order
from hf2q.errors import ContractError, TensorMismatchError
from hf2q.types import TensorCatalog, TensorInfo, TensorRule


class Sizes:
    def __init__(self, kinds, **symbols):
        self.layer_kinds = kinds
        self.symbols = symbols


def info(name, shape=(2,)):
    return TensorInfo(name=name, shape=shape, dtype="F32", file="f", offset=0, nbytes=8)


def rule(name, *hf, shape=("n",), **more):
    return TensorRule(name=name, hf=hf, shape=shape, **more)


CATALOG = TensorCatalog(
    name="toy",
    rules=(
        rule("out.weight", "out.weight"),
        rule("blk.{i}.a.weight", "layers.{i}.a", layers=("one", "two")),
        rule("blk.{i}.b.weight", "layers.{i}.b", layers=("two",), optional=True),
        rule("blk.{i}.m.weight", "mtp.{j}.m", layers=("mtp",), shape=(3, "n")),
    ),
    ignore=((r"vision\.", "no eyes"),),
    strip=("model.",),
    mtp=r"mtp\.",
)
SIZES = Sizes(("one", "two", "mtp", "mtp"), n=2)


def names(catalog=CATALOG, sizes=SIZES):
    return [spec.name for spec in expand(catalog, sizes)]


def test_blocks_follow_what_is_outside_them_and_rules_their_kinds():
    assert names() == ["out.weight", *(f"blk.{k}.weight" for k in ("0.a", "1.a", "1.b", "2.m", "3.m"))]
    specs = {spec.name: spec for spec in expand(CATALOG, SIZES)}
    assert specs["blk.3.m.weight"].inputs == (("mtp.1.m",),)  # {j} counts MTP blocks
    assert specs["blk.3.m.weight"].shape == (3, 2)
    assert specs["out.weight"].block is None
    assert CATALOG.expand(SIZES) == expand(CATALOG, SIZES)


def test_experts_and_several_inputs():
    catalog = TensorCatalog(name="toy", rules=(rule("x", "all", "e.{e}.w", "p+q"),))
    (spec,) = expand(catalog, Sizes((), n=2, n_expert=3))
    assert spec.inputs == (("all",), ("e.0.w", "e.1.w", "e.2.w"), ("p", "q"))
    claims = claim(catalog, [spec], [info(f"e.{k}.w") for k in range(3)])
    assert claims.claimed[0].stacked
    assert claims.claimed[0].inputs == ("e.0.w", "e.1.w", "e.2.w")
    assert not claim(catalog, [spec], [info("p"), info("q")]).claimed[0].stacked


def test_catalogs_that_contradict_themselves():
    with pytest.raises(ContractError, match="unknown symbol"):
        names(TensorCatalog(name="toy", rules=(rule("x", "x", shape=("nope",)),)))
    with pytest.raises(ContractError, match="'x' twice"):
        names(TensorCatalog(name="toy", rules=(rule("x", "a"), rule("x", "b"))))


CHECKPOINT = ("model.out.weight", "layers.0.a", "layers.1.a", "mtp.0.m", "mtp.1.m", "vision.eye")


def test_every_tensor_is_claimed_or_ignored_for_a_reason():
    claims = claim(CATALOG, expand(CATALOG, SIZES), [info(name) for name in CHECKPOINT])
    assert [c.inputs for c in claims.claimed] == [(name,) for name in CHECKPOINT[:-1]]
    assert claims.ignored == (("vision.eye", "no eyes"),)


def test_mtp_is_left_out_on_request():
    sizes = Sizes(("one", "two"), n=2)
    claims = claim(CATALOG, expand(CATALOG, sizes), [info(name) for name in CHECKPOINT], mtp=False)
    assert [reason for _, reason in claims.ignored] == ["MTP, left out on request"] * 2 + ["no eyes"]
    with pytest.raises(TensorMismatchError, match=r"not known to toy: mtp\.0\.m, mtp\.1\.m"):
        claim(CATALOG, expand(CATALOG, sizes), [info(name) for name in CHECKPOINT])


def test_all_that_is_missing_and_all_that_is_left_over_is_named():
    present = [info(name) for name in ("model.out.weight", "layers.1.a", "mtp.0.m", "odd.one", "odd.two")]
    with pytest.raises(TensorMismatchError) as caught:
        claim(CATALOG, expand(CATALOG, SIZES), present)
    message = caught.value.message
    assert "2 tensors that toy needs are missing" in message
    assert "blk.0.a.weight (from layers.0.a)" in message
    assert "blk.3.m.weight (from mtp.1.m)" in message
    assert "2 checkpoint tensors are not known to toy: odd.one, odd.two" in message


def test_one_tensor_may_feed_two_and_alternatives_have_an_order():
    catalog = TensorCatalog(name="toy", rules=(rule("x", "new", "old"), rule("y", "new", "old")))
    specs = expand(catalog, Sizes((), n=2))
    assert [c.inputs for c in claim(catalog, specs, [info("old")]).claimed] == [("old",), ("old",)]
    with pytest.raises(TensorMismatchError, match="not known to toy: old"):
        claim(catalog, specs, [info("new"), info("old")])


def test_two_spellings_of_one_tensor_are_refused():
    with pytest.raises(TensorMismatchError, match="the same tensor"):
        claim(CATALOG, [], [info("model.vision.x"), info("vision.x")])


def test_a_tensor_may_come_from_the_sizes_alone():
    catalog = TensorCatalog(name="toy", rules=(rule("made.weight", transform="m:f"), rule("out.weight", "out.weight")))
    specs = expand(catalog, SIZES)
    assert specs[0].inputs == ()
    made, out = claim(catalog, specs, [info("out.weight")]).claimed
    assert (made.spec.name, made.inputs, made.stacked) == ("made.weight", (), False)
    assert in_converter_order([out, made], ["out.weight"]) == [made, out]


def test_rules_count_where_what_they_need_is_there():
    catalog = TensorCatalog(name="toy", rules=(rule("x", "x", needs="n"), rule("y", "y", needs="n_expert")))
    assert names(catalog, Sizes((), n=2, n_expert=0)) == ["x"]
    assert names(catalog, Sizes((), n=2, n_expert=3)) == ["x", "y"]
    with pytest.raises(ContractError, match="unknown symbol 'n_expert'"):
        expand(catalog, SIZES)
