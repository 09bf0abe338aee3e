"""`Embedder` and `Model.embed`: pooling, batches, lengths and refusals, with an encoder of a few lines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.backends.reference import ReferenceOps
from hf2q.errors import ContextLengthError, ContractError, Hf2qError, LoadError, RequestError, UsageError
from hf2q.serve import pooling
from hf2q.serve.embedding import BATCH_TOKENS, SHORT, SIMILAR, Embedder, _batches
from hf2q.serve.model import Model
from hf2q.testing.scripted import ScriptedHParams, scripted_model, scripted_tokenizer
from hf2q.types import GraphEntry

CONTEXT = 64


class ToyEncoder:
    """A token's state is (id, position, sum of the text's ids): everything shows in it. Padding is 10^6 there."""

    n_vocab = scripted_tokenizer().n_vocab

    def __init__(self):
        self.calls = []

    def hidden(self, ids, lengths):
        self.calls.append((ids.shape, tuple(lengths)))
        states = np.full((*ids.shape, 3), 1e6, np.float32)
        for row, length in enumerate(lengths):
            text = ids[row, :length]
            states[row, :length] = np.stack([text, np.arange(length), np.full(length, text.sum())], -1)
        return states


def embedder(encoder=None, stated="mean", context_length=CONTEXT):
    return Embedder(
        encoder or ToyEncoder(),
        ReferenceOps(threads=1),
        scripted_tokenizer(),
        context_length=context_length,
        pooling=stated,
        pooling_key="toy.pooling_type",
    )


def model(pooling_type=1, **changes):
    tokenizer = scripted_tokenizer()
    metadata = {} if pooling_type is None else {"toy.pooling_type": pooling_type}
    fields = {
        "path": "toy.gguf",
        "arch": "toy",
        "hparams": ScriptedHParams(n_vocab=tokenizer.n_vocab),
        "metadata": metadata,
        "tokenizer": tokenizer,
        "context_length": CONTEXT,
        "graph": ToyEncoder(),
        "task": "embed",
        "ops": ReferenceOps(threads=1),
        **changes,
    }
    return Model(**fields)


# --------------------------------------------------------------------------------------------------------- pooling


@pytest.mark.parametrize(("name", "wanted"), [("mean", [2, 3]), ("cls", [1, 5]), ("last", [3, 1])])
def test_pooling(name, wanted):
    states = np.array([[1, 5], [2, 3], [3, 1]], np.float32)
    found = pooling.POOLINGS[name](states)
    assert found.dtype == np.float32
    assert found.tolist() == wanted
    assert found.base is None  # it does not keep a whole batch alive


def test_the_mean_of_many_is_exact():
    states = np.full((100_000, 1), 0.1, np.float32)
    assert pooling.POOLINGS["mean"](states)[0] == np.float32(0.1)


def test_unit_lengths():
    found = pooling.unit(np.array([[3, 4], [0, 0], [3e38, 3e38]], np.float32))
    assert found.dtype == np.float32
    assert np.allclose(found, [[0.6, 0.8], [0, 0], [0.5**0.5, 0.5**0.5]])


@pytest.mark.parametrize(
    ("number", "name"), [(None, None), (0, "none"), (1, "mean"), (2, "cls"), (3, "last"), (4, "rank")]
)
def test_what_a_file_states(number, name):
    metadata = {} if number is None else {"toy.pooling_type": number}
    assert pooling.stated(metadata, "toy") == name


@pytest.mark.parametrize("value", [5, -1, True, "mean", 1.0])
def test_a_file_that_states_nonsense(value):
    with pytest.raises(LoadError, match=r"toy\.pooling_type is"):
        pooling.stated({"toy.pooling_type": value}, "toy")


@pytest.mark.parametrize(("stated", "says"), [(None, "is missing"), ("none", "is 0, none"), ("rank", "is 4, rank")])
def test_without_a_pooling_there_is_no_vector(stated, says):
    with pytest.raises(UsageError, match=rf"toy\.pooling_type {says}"):
        embedder(stated=stated).vectors([[1]])
    assert embedder(stated=stated).vectors([[1]], pooling="last").shape == (1, 3)


def test_an_unknown_pooling():
    with pytest.raises(UsageError, match="pooling 'max' is not known, expected one of mean, cls, last"):
        embedder().vectors([[1]], pooling="max")


# --------------------------------------------------------------------------------------------------------- batches


@given(st.lists(st.integers(1, 3 * BATCH_TOKENS), max_size=40))
def test_batches_hold_every_text_once_and_little_padding(lengths):
    batches = list(_batches(lengths))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= BATCH_TOKENS
        assert all(lengths[index] >= SIMILAR * longest for index in batch) or longest <= SHORT


@given(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=CONTEXT), min_size=1, max_size=12))
def test_vectors_come_in_the_order_of_the_texts(rows):
    encoder = ToyEncoder()
    found = embedder(encoder).vectors(rows, pooling="last", normalize=False)
    assert found.tolist() == [[row[-1], len(row) - 1, sum(row)] for row in rows]
    assert sum(len(lengths) for _, lengths in encoder.calls) == len(rows)


def test_texts_of_one_length_go_together():
    encoder = ToyEncoder()
    embedder(encoder).vectors([[1] * 20, [2] * 3, [3] * 20, [4] * 5])
    assert encoder.calls == [((2, 20), (20, 20)), ((2, 5), (5, 3))]


def test_states_of_one_text():
    assert embedder().states([7, 9]).tolist() == [[7, 0, 16], [9, 1, 16]]


def test_states_that_are_no_numbers_are_refused():
    class Broken(ToyEncoder):
        def hidden(self, ids, lengths):
            states = super().hidden(ids, lengths)
            states[-1, 0, 0] = np.nan
            return states

    with pytest.raises(Hf2qError, match="not finite"):
        embedder(Broken()).vectors([[1, 2]])


# --------------------------------------------------------------------------------------------------------- texts


def test_long_texts_are_refused_with_numbers_or_cut():
    made = embedder(context_length=8)
    with pytest.raises(ContextLengthError, match="a text of 9 tokens does not fit the model's context of 8"):
        made.tokens("x" * 9)
    assert made.tokens("x" * 9, truncate=True) == made.tokens("x" * 8)
    with pytest.raises(ContextLengthError, match="9 tokens do not fit the model's context of 8"):
        made.vectors([[1] * 9])


def test_a_text_of_no_tokens():
    with pytest.raises(RequestError, match="no tokens"):
        embedder().tokens("")


def test_ids_outside_of_the_vocabulary():
    with pytest.raises(RequestError, match="outside the vocabulary"):
        embedder().vectors([[10**6]])


# --------------------------------------------------------------------------------------------------------- the model


def test_a_model_embeds():
    found = model().embed(["ab", "c"], normalize=False)
    assert found.tolist() == [[97.5, 0.5, 195], [99, 0, 99]]
    assert model().embed("ab", pooling="cls", normalize=False).tolist() == [[97, 0, 195]]
    assert np.allclose(np.linalg.norm(model().embed(["ab", "c"]), axis=-1), 1)


@pytest.mark.parametrize("texts", [b"ab", 5, None, ["a", 5], {"a": "b"}])
def test_what_is_no_text(texts):
    with pytest.raises(RequestError, match="expected a text or a list of texts"):
        model().embed(texts)


def test_no_texts():
    with pytest.raises(RequestError, match="no texts"):
        model().embed([])


@pytest.mark.parametrize("ask", [lambda m: m.logits([1]), lambda m: m.generate("x"), lambda m: m.sequence()])
def test_an_encoder_generates_nothing(ask):
    with pytest.raises(UsageError, match=r"toy\.gguf is an embedding model \(toy\)") as error:
        ask(model())
    assert "Model.embed" in error.value.hint


def test_a_model_that_generates_is_no_embedding_model():
    with pytest.raises(UsageError, match=r"scripted\.pooling_type is missing"):
        scripted_model().embed("x", pooling="mean")


def test_a_decoder_whose_file_states_a_pooling_embeds():
    """Padding comes after a text, where its tokens do not see it: rows are those of texts alone."""
    base = scripted_model()

    class Counting:
        """States are the number of tokens so far."""

        n_vocab = base.n_vocab
        new_cache = staticmethod(base.sequence()._graph.new_cache)

        def hidden(self, ids, caches):
            assert all(cache.position == 0 for cache in caches)
            return np.arange(1, ids.shape[1] + 1, dtype=np.float32)[None, :, None].repeat(len(ids), 0)

    made = model(3, graph=Counting(), task="generate")
    assert made.embed(["abcd", "ab", "x"], normalize=False).tolist() == [[4], [2], [1]]
    assert made.sequence().position == 0


def test_a_graph_is_for_a_known_task():
    assert GraphEntry(arch="a", graph="a:b").task == "generate"
    with pytest.raises(ContractError, match="task 'rank', expected generate or embed"):
        GraphEntry(arch="a", graph="a:b", task="rank")
