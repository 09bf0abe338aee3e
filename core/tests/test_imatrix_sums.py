"""Sums of squared activations: of products one by one, of experts, on every backend; chunks; state; comparison."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.backends.reference import ReferenceOps
from hf2q.backends.weights import ArraySource
from hf2q.builtin import hf2q_quant_codecs
from hf2q.errors import QualityError
from hf2q.formats.imatrix import Entry, Imatrix
from hf2q.quality.imatrix.chunks import CorpusTooShortError, chunks
from hf2q.quality.imatrix.compare import compare
from hf2q.quality.imatrix.state import State
from hf2q.quality.imatrix.sums import Sums
from hf2q.quality.imatrix.watched import NamedWeights, Watched
from hf2q.quality.text import Corpus
from hf2q.testing.scripted import scripted_model

RNG = np.random.default_rng(7)
CODECS = {codec.name: codec for codec in hf2q_quant_codecs()}


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(params=["reference", "cpu", pytest.param("mlx", marks=pytest.mark.mlx)])
def ops(request):
    if request.param == "reference":
        return ReferenceOps(threads=1)
    if request.param == "mlx":
        pytest.importorskip("mlx.core")
        from hf2q.backends.mlx import MlxOps

        return MlxOps(threads=1)
    pytest.importorskip("numba")
    from hf2q.backends.cpu.ops import CpuOps

    return CpuOps(threads=1, exact=True)


def watched(ops, arrays, *, output=False):
    """Watched ops over matrices by name, and their sums."""
    source, sums = ArraySource(arrays), Sums()
    weights = NamedWeights(source, CODECS.__getitem__, ops)
    matrices = {name: weights.matrix(name) for name in arrays}
    weights.finish()
    return Watched.of(ops, sums, weights, source.tensors.keys(), output=output), sums, matrices


def test_products_are_counted_by_their_weights(ops):
    arrays = {
        name: random(32, 32) for name in ("blk.0.a.weight", "blk.0.b.weight", "output.weight", "token_embd.weight")
    }
    x, y = random(1, 5, 32), random(1, 3, 32)
    seen, sums, matrices = watched(ops, arrays)
    first, second = seen.linears(ops.asarray(x), [matrices["blk.0.a.weight"], matrices["blk.0.b.weight"]])
    np.testing.assert_allclose(ops.to_numpy(first), x @ arrays["blk.0.a.weight"].T, rtol=1e-4, atol=1e-4)
    assert second.shape == (1, 5, 32)
    seen.linear(ops.asarray(y), matrices["blk.0.a.weight"])
    seen.linear(ops.asarray(x), matrices["output.weight"])
    seen.linear(ops.asarray(x), matrices["token_embd.weight"])
    entries = sums.entries()
    assert sorted(entries) == ["blk.0.a.weight", "blk.0.b.weight"]
    assert [entries[name].counts.tolist() for name in sorted(entries)] == [[8], [5]]
    both = np.concatenate([x, y], axis=1).astype(np.float64)
    np.testing.assert_allclose(entries["blk.0.a.weight"].sums, np.square(both).sum((0, 1))[None], rtol=1e-6)
    seen, sums, matrices = watched(ops, arrays, output=True)
    seen.linear(ops.asarray(x), matrices["output.weight"])
    seen.linear(ops.asarray(x), matrices["token_embd.weight"])  # embeddings that serve as output are not `output`
    assert list(sums.entries()) == ["output.weight"]


@pytest.mark.parametrize("fused", [False, True])
def test_experts_get_what_is_routed_to_them(ops, fused):
    experts, width, hidden, tokens = 5, 32, 32, 9
    gate, up, down = random(experts, hidden, width), random(experts, hidden, width), random(experts, width, hidden)
    name = "blk.0.ffn_{}_exps.weight".format
    stacks = {name("gate_up"): np.concatenate([gate, up], 1)} if fused else {name("gate"): gate, name("up"): up}
    seen, sums, matrices = watched(ops, {**stacks, name("down"): down})
    x = random(1, tokens, width)
    chosen = np.stack([RNG.permutation(4)[:2] for _ in range(tokens)]).astype(np.int32)  # the last is never used
    chosen[3] = 2, 2  # twice the same
    share = RNG.random((1, tokens, 2)).astype(np.float32)

    def activation(a, b):
        return ops.swiglu(a, b)

    args = [ops.asarray(x), ops.asarray(chosen[None]), ops.asarray(share)]
    out = seen.moe(*args, [matrices[one] for one in stacks], matrices[name("down")], activation)
    wanted = np.zeros((tokens, width))
    into, inside = np.zeros((experts, width)), np.zeros((experts, hidden))
    for token in range(tokens):
        for place, expert in enumerate(chosen[token]):
            a, b = gate[expert] @ x[0, token], up[expert] @ x[0, token]
            h = a / (1 + np.exp(-a)) * b
            wanted[token] += share[0, token, place] * (down[expert] @ h)
            into[expert] += np.square(x[0, token].astype(np.float64))
            inside[expert] += np.square(h.astype(np.float64))
    np.testing.assert_allclose(ops.to_numpy(out)[0], wanted, rtol=1e-3, atol=1e-3)
    entries = sums.entries()
    assert set(entries) == {*stacks, name("down")}
    for one, entry in entries.items():
        assert entry.counts.tolist() == np.bincount(chosen.ravel(), minlength=experts).tolist()
        np.testing.assert_allclose(entry.sums, inside if one == name("down") else into, rtol=1e-4, atol=1e-6)
    assert entries[name("down")].covered == 4


def test_what_graphs_do_in_one_op_is_counted_product_by_product(ops):
    names = [f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down")]
    seen, sums, matrices = watched(ops, {name: random(32, 32) for name in names})
    x, norm = random(1, 4, 32), np.ones(32, np.float32)
    seen.gated_ffn(ops.asarray(x), ops.asarray(norm), 1e-6, *(matrices[name] for name in names))
    entries = sums.entries()
    assert sorted(entries) == sorted(names)
    np.testing.assert_array_equal(entries[names[0]].sums, entries[names[1]].sums)
    np.testing.assert_allclose(entries[names[0]].sums.sum(), 4 * 32, rtol=1e-4)  # four rows of mean square 1


def test_groups_are_one_tensor():
    ops = ReferenceOps(threads=1)
    source, sums = ArraySource({"blk.0.o.weight": random(6, 4)}), Sums()
    weights = NamedWeights(source, CODECS.__getitem__, ops)
    matrix = weights.matrix("blk.0.o.weight", groups=2)
    x = random(1, 3, 2, 4)
    Watched.of(ops, sums, weights, source.tensors.keys(), output=False).grouped_linear(x, matrix)
    entry = sums.entries()["blk.0.o.weight"]
    assert entry.counts.tolist() == [6]
    np.testing.assert_allclose(entry.sums[0], np.square(x).sum((0, 1, 2)), rtol=1e-6)


def test_a_gate_of_one_row_takes_what_the_shared_expert_takes():
    ops = ReferenceOps(threads=1)
    stem = "blk.0.ffn_gate"
    source, sums = ArraySource({f"{stem}_shexp.weight": random(4, 4), f"{stem}_inp_shexp.weight": random(1, 4)}), Sums()
    weights = NamedWeights(source, CODECS.__getitem__, ops)
    matrix = weights.matrix(f"{stem}_shexp.weight")
    Watched.of(ops, sums, weights, source.tensors.keys(), output=False).linear(random(1, 3, 4), matrix)
    assert sorted(sums.totals) == [f"{stem}_inp_shexp.weight", f"{stem}_shexp.weight"]


def test_a_backend_whose_order_is_unknown_is_refused():
    class Other(ReferenceOps):
        name = "other"

    with pytest.raises(QualityError, match="'other' is not known to compute experts in an order"):
        watched(Other(threads=1), {"blk.0.a.weight": random(2, 2)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e25])
def test_sums_that_are_not_finite_name_the_tensor(bad):
    sums, x = Sums(), np.ones((2, 3), np.float32)
    sums.add(("blk.0.a.weight",), x)
    sums.check()
    x[1, 2] = bad
    sums.add(("blk.1.b.weight",), x)
    with pytest.raises(QualityError, match=r"go into blk\.1\.b\.weight are not finite.*column 2\)"):
        sums.check()
    experts = Sums()
    experts.add_experts(("blk.1.c.weight",), x, np.array([[0], [1]]), 2)
    with pytest.raises(QualityError, match="column 2 of expert 1"):
        experts.entries()


# -------------------------------------------------------------------------------------------------------------- chunks


def corpus(text):
    return Corpus(name="text", text=text, sha256="0" * 64)


def test_chunks_are_whole_and_can_be_skipped():
    tokenizer = scripted_model().tokenizer
    text = "".join(chr(97 + i % 26) for i in range(70))
    ids = tokenizer.encode(text)
    found = chunks(corpus(text), tokenizer, n_ctx=16, context_length=64)
    assert found.shape == (4, 16)
    assert found.reshape(-1).tolist() == ids[:64]
    assert chunks(corpus(text), tokenizer, n_ctx=16, context_length=64, skip=1, most=2).tolist() == found[1:3].tolist()


def test_the_first_token_of_each_chunk_is_bos_where_the_model_wants_one():
    tokenizer = scripted_model().tokenizer

    class WithBos:
        add_bos, bos_id = True, 9

        def encode(self, text, *, special):
            assert not special
            return [9, *tokenizer.encode(text)]

    found = chunks(corpus("a" * 50), WithBos(), n_ctx=16, context_length=64)
    assert found[:, 0].tolist() == [9, 9, 9]
    assert (found[:, 1:] != 9).all()


def test_chunks_that_cannot_be_had():
    tokenizer = scripted_model().tokenizer
    with pytest.raises(CorpusTooShortError, match="has 40 tokens for this model, expected at least 64") as caught:
        chunks(corpus("a" * 40), tokenizer, n_ctx=32, context_length=64)
    assert (caught.value.tokens, caught.value.needed) == (40, 64)
    with pytest.raises(CorpusTooShortError, match="has 40 tokens for this model, expected at least 48"):
        chunks(corpus("a" * 40), tokenizer, n_ctx=16, context_length=64, skip=1)
    for size in (0, 15, 65):
        with pytest.raises(QualityError, match=f"chunks of {size} tokens .* expected 16 to 64"):
            chunks(corpus("a" * 400), tokenizer, n_ctx=size, context_length=64)


# --------------------------------------------------------------------------------------------------------------- state


def test_a_state_comes_back_as_it_was(tmp_path):
    path = tmp_path / "run.sums"
    state = State(path, {"model": "m", "n": 1})
    state.sums.add(("a",), random(3, 4))
    state.sums.add_experts(("b",), random(3, 2), np.array([[0, 2], [1, 2], [2, 0]]), 4)
    state.advance()
    state.sums.add(("a",), random(1, 4))
    state.advance(last=True)
    again = State(path, {"model": "m", "n": 1})
    assert again.done == 2
    for name, total in state.sums.totals.items():
        assert np.array_equal(again.sums.totals[name].sums, total.sums)
        assert np.array_equal(again.sums.totals[name].counts, total.counts)
    with pytest.raises(QualityError, match="another run: n is 1 there, 2 here"):
        State(path, {"model": "m", "n": 2})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_damaged_state_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("state") / "run.sums"
    state = State(path, {"n": 1})
    state.sums.add(("a",), np.ones((3, 4), np.float32))
    state.advance(last=True)
    raw = path.read_bytes()
    where = data.draw(st.integers(0, len(raw) - 1))
    path.write_bytes(data.draw(st.sampled_from([raw[:where], raw + b"x", raw[where:], b"", b"null\n", b"{}\n"])))
    if path.read_bytes() == raw:
        return
    with pytest.raises(QualityError, match=r"holds no sums|another run"):
        State(path, {"n": 1})


# ---------------------------------------------------------------------------------------------------------- comparison


def matrix(chunk_size=4, **entries):
    return Imatrix(
        entries={
            name: Entry(sums=np.array(sums, np.float32), counts=np.array(counts, np.int64))
            for name, (sums, counts) in entries.items()
        },
        chunk_count=1,
        chunk_size=chunk_size,
    )


def test_agreement():
    a = matrix(x=([[1.0, 100.0, 0.0]], [4]), y=([[1.0], [2.0]], [1, 3]))
    found = compare(a, a)
    assert (found.agrees, found.absolute, found.relative) == (True, 0, 0)
    near = matrix(x=([[1.0009, 100.9, 0.0005]], [4]), y=([[1.0], [2.0]], [1, 3]))
    found = compare(a, near)
    assert found.agrees  # one by its absolute, one by its relative difference
    assert found.relative == 1
    assert not compare(a, near, absolute=1e-4).agrees
    assert not compare(a, near, relative=1e-3).agrees
    counts = compare(a, matrix(x=([[1.0, 100.0, 0.0]], [5]), y=([[1.0], [2.0]], [1, 3])))
    assert [tensor.counts for tensor in counts.tensors] == [1, 0]
    assert not counts.agrees
    names = compare(a, matrix(x=([[1.0, 100.0, 0.0]], [4]), z=([[1.0]], [1])))
    assert (names.only_first, names.only_second, names.agrees) == (("y",), ("z",), False)
    shape = compare(a, matrix(x=([[1.0, 100.0]], [4]), y=([[1.0], [2.0]], [1, 3])))
    assert [tensor.shape for tensor in shape.tensors] == [False, True]
    assert not shape.agrees


def test_counts_in_chunks_are_brought_into_tokens():
    legacy = matrix(chunk_size=0, x=([[2.0, 4.0]], [1]))
    assert compare(legacy, matrix(x=([[8.0, 16.0]], [4]))).agrees
    assert compare(matrix(x=([[8.0, 16.0]], [4])), legacy).agrees
