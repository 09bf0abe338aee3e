"""The tokenizer rebuilt from metadata: the same ids and text as tokenizer.json, and refusal of damaged metadata."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf2q.errors import LoadError, RequestError
from hf2q.formats.tokenizer import load_tokenizer, read_tokenizer
from hf2q.formats.tokenizer.ending import ending_ids
from hf2q.types import PreTokenizer

tokenizers = pytest.importorskip("tokenizers")

FOLDER = Path(__file__).parents[3] / "tests" / "data" / "qwen3_5"
QWEN35 = PreTokenizer(
    name="qwen35",
    split=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    normalizer="NFC",
)
CONFIG = json.loads((FOLDER / "config.json").read_text("utf-8"))
METADATA = {field.key: field.value for field in read_tokenizer(FOLDER, 2048, CONFIG, [QWEN35])}
TOKENIZER = load_tokenizer(METADATA, [QWEN35])
REFERENCE = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
KEY = "tokenizer.ggml.{}".format
MARKED = [
    text for text, kind in zip(METADATA[KEY("tokens")], METADATA[KEY("token_type")], strict=True) if kind in (3, 4)
]

GOLDEN = [
    "",
    "Hello, world!",
    "It's we'll THEY'RE I'd",
    " leading",
    "trailing ",
    "a  b   c    d",
    "   ",
    "line\nline\n\n\nline\r\nline\r\r\n",
    "\ttabs\t\tand \t mixed",
    "\u00e9t\u00e9 caf\u00e9 na\u00efve \u00c5ngstr\u00f6m",
    "e\u0301te\u0301 A\u030angstrom o\u0308",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e01\u0e33 \u0639\u064e\u0631",
    "\u65e5\u672c\u8a9e\u3068\u4e2d\u6587\u3001\ud55c\uad6d\uc5b4\u3002",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7",
    "3.14159 1,000,000 \u0663\u0664 \u00bd \u2168 2026",
    "def f(x):\n    return x ** 2  # \u03c0\n\n\nprint(f(3))\n",
    "<html><p>&amp;</p></html> </s> <s> [INST] [PAD7] [PAD2047]",
    "\x00\x01\x1b[0m\x7f\x85",
    "\ue000\uf8ff\U000f0000\U0010fffd\ufffe\ufffd",
    "\u200b\u200e\ufeff\u2028\u2029\u00a0\u3000",
    "user<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "x<tool_call>{}</tool_call>y <|im_end|><|im_end|>z<|endoftext|>",
    "<|im_start|<|im_start|><|im_end|>|> <think <think>>",
]


def reference(text):
    return REFERENCE.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", GOLDEN)
def test_ids_and_text_of_the_golden_strings(text):
    ids = TOKENIZER.encode(text)
    assert ids == reference(text)
    assert TOKENIZER.decode(ids) == REFERENCE.decode(ids, skip_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special=True) == REFERENCE.decode(ids, skip_special_tokens=True)


TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from([*MARKED, *GOLDEN, "[PAD2047]"])), max_size=6).map(
    "".join
)


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_any_text_encodes_as_tokenizer_json_does(text):
    assert TOKENIZER.encode(text) == reference(text)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_special_tokens_in_plain_text_stay_text(text):
    ids = TOKENIZER.encode(text, special=False)
    assert TOKENIZER.special_ids.isdisjoint(ids)
    pieces = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == TOKENIZER.decode(pieces)


@given(st.lists(st.integers(0, TOKENIZER.n_vocab - 1), max_size=30))
def test_any_ids_decode_as_tokenizer_json_does(ids):
    assert TOKENIZER.decode(ids) == REFERENCE.decode(ids, skip_special_tokens=False)


def test_plain_reading_of_special_text():
    text = "<|im_start|>system"
    ids = TOKENIZER.encode(text, special=False)
    assert len(ids) > 2
    assert 2008 not in ids
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.encode("<think>", special=False) == [2031]


def test_attributes():
    assert (TOKENIZER.pre, TOKENIZER.n_vocab) == ("qwen35", 2048)
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id, TOKENIZER.pad_id) == (None, 2009, 2007)
    assert (TOKENIZER.add_bos, TOKENIZER.add_eos) == (False, False)
    names = {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
    assert {TOKENIZER.token_text(number) for number in TOKENIZER.eos_ids} == names
    assert {2007, 2008, 2009} <= TOKENIZER.special_ids
    assert TOKENIZER.special_ids.isdisjoint({2021, 2031, 2047, 0})


def test_single_tokens():
    (space_the,) = TOKENIZER.encode(" the")
    assert TOKENIZER.token_text(space_the) == "\u0120the"
    assert TOKENIZER.token_bytes(space_the) == b" the"
    assert TOKENIZER.id_of("\u0120the") == space_the
    assert TOKENIZER.id_of("<|im_end|>") == 2009
    assert TOKENIZER.id_of("[PAD2047]") is None
    assert TOKENIZER.id_of("no such token") is None
    assert TOKENIZER.token_bytes(2047) == b""
    assert TOKENIZER.token_bytes(2008) == b"<|im_start|>"


@pytest.mark.parametrize("number", [-1, 2048, 1 << 40])
def test_ids_outside_the_vocabulary(number):
    for call in (
        TOKENIZER.token_bytes,
        TOKENIZER.token_text,
        TOKENIZER.stream().push,
        lambda token: TOKENIZER.decode([token]),
    ):
        with pytest.raises(RequestError, match="outside the vocabulary of 2048"):
            call(number)


def test_a_lone_surrogate_is_refused():
    with pytest.raises(RequestError, match="surrogate"):
        TOKENIZER.encode("a\ud800b")


# -------------------------------------------------------------------------------------------------- changed metadata


def load(known=(QWEN35,), **changes):
    metadata = {**METADATA, **{KEY(name): value for name, value in changes.items()}}
    return load_tokenizer({key: value for key, value in metadata.items() if value is not None}, known)


def replaced(name, **places):
    values = list(METADATA[KEY(name)])
    for place, value in places.items():
        values[int(place[1:])] = value
    return values


def test_bos_and_eos_as_the_file_says():
    tokenizer = load(bos_token_id=2008, add_bos_token=True, add_eos_token=True)
    inner = TOKENIZER.encode("hi")
    assert tokenizer.encode("hi") == [2008, *inner, 2009]
    assert tokenizer.encode("hi", add_bos=False) == inner
    assert tokenizer.encode("hi", add_bos=True) == [2008, *inner]
    assert load(bos_token_id=2008).encode("hi") == inner
    with pytest.raises(RequestError, match="no BOS"):
        TOKENIZER.encode("hi", add_bos=True)


def test_digits_and_prefix_space_of_the_record():
    record = PreTokenizer(name="qwen35", split=QWEN35.split, digits=True, add_prefix_space=True)
    assert load([record]).encode("hi 12") == TOKENIZER.encode(" hi") + [TOKENIZER.id_of("\u0120")] + [
        TOKENIZER.id_of(text) for text in ("\u0120", "1", "\u0120", "2")
    ]


def test_text_never_merges_into_a_control_token():
    he = TOKENIZER.id_of("he")
    tokenizer = load(token_type=replaced("token_type", **{f"_{he}": 3}))
    assert he in tokenizer.encode("he")
    plain = tokenizer.encode("he", special=False)
    assert plain == [TOKENIZER.id_of("h"), TOKENIZER.id_of("e")]


def test_ignore_merges_takes_whole_pieces():
    tokens = replaced("tokens", _2041="qzxj")
    types = replaced("token_type", _2041=1)
    assert len(load(tokens=tokens, token_type=types).encode("qzxj")) > 1
    whole = PreTokenizer(name="qwen35", split=QWEN35.split, normalizer="NFC", ignore_merges=True)
    assert load([whole], tokens=tokens, token_type=types).encode("qzxj") == [2041]


def test_ids_outside_the_vocabulary_or_unused_are_left_out():
    tokenizer = load(bos_token_id=2**32 - 1, padding_token_id=2047)
    assert (tokenizer.bos_id, tokenizer.pad_id) == (None, None)


def test_unused_tokens_may_share_a_text():
    assert load(tokens=replaced("tokens", _2046="[PAD2047]", _2045="the")).encode("the") == TOKENIZER.encode("the")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "ggml.model is missing"),
        ({"model": "llama"}, "ggml.model is 'llama', expected 'gpt2'"),
        ({"model": 3}, "ggml.model is int"),
        ({"pre": "other"}, "ggml.pre is 'other'; known pre-tokenizers: qwen35"),
        ({"pre": None}, "ggml.pre is missing"),
        ({"tokens": None}, "ggml.tokens is missing"),
        ({"tokens": "abc"}, "ggml.tokens is str, expected an array"),
        ({"tokens": 7}, "ggml.tokens is int, expected an array"),
        ({"tokens": ()}, "ggml.tokens is empty"),
        ({"tokens": [1] * 2048}, "ggml.tokens holds int, expected str"),
        ({"tokens": replaced("tokens", _5=b"x")}, "ggml.tokens holds bytes"),
        ({"tokens": replaced("tokens", _5="the")}, "2 tokens have the same text 'the'"),
        ({"tokens": replaced("tokens", _5="<|im_end|>")}, "2 tokens have the same text"),
        ({"token_type": None}, "ggml.token_type is missing"),
        ({"token_type": [1] * 2047}, "2047 entries.*2048"),
        ({"token_type": [1.0] * 2048}, "holds float, expected int"),
        ({"token_type": replaced("token_type", _5=9)}, "the value 9, expected 1 to 6"),
        ({"token_type": replaced("token_type", _5=True)}, "holds bool"),
        ({"merges": None}, "ggml.merges is missing"),
        ({"merges": ["h e", "nospace"]}, r"merges\[1\] is 'nospace'"),
        ({"merges": ["h e", "a b c"]}, r"merges\[1\] is 'a b c'"),
        ({"merges": ["h e", "zzz q"]}, "'zzz' 'q' needs 'zzz', which is no token"),
        ({"merges": ["q q"]}, "needs 'qq', which is no token"),
        ({"merges": [" h"]}, "needs '', which is no token"),
        ({"eos_token_id": "2009"}, "eos_token_id is str"),
        ({"eos_token_id": True}, "eos_token_id is bool"),
        ({"add_bos_token": 1}, "add_bos_token is int"),
        ({"add_bos_token": True}, "add_bos_token is set"),
        ({"add_eos_token": True, "eos_token_id": 5000}, "add_eos_token is set"),
    ],
)
def test_damaged_metadata(changes, message):
    with pytest.raises(LoadError, match=message):
        load(**changes)


@pytest.mark.parametrize("record", [{"split": ("(",)}, {"normalizer": "NFKC"}])
def test_unusable_records(record):
    with pytest.raises(LoadError, match="pre-tokenizer 'qwen35' has"):
        load([PreTokenizer(**{"name": "qwen35", **record})])


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(LoadError, match=r'tokenizers cannot be imported.*\nhint: pip install "hf2q\[serve\]"'):
        load()


# ------------------------------------------------------------------------------------------------- ends of generation


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["<|im_end|>", "<think>", "<|endoftext|>"], {"<|im_end|>", "<|endoftext|>"}),
        (["<|end|>", "<|return|>"], {"<|end|>", "<|return|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|flush|>", "<|calls|>"], {"<|flush|>", "<|calls|>"}),
        (["</s>", "<eos>"], {"</s>", "<eos>"}),
        (["</s>", "<|tool_response>"], {"<|tool_response>"}),
        (["<\uff5cend\u2581of\u2581sentence\uff5c>", "[PAD]"], {"<\uff5cend\u2581of\u2581sentence\uff5c>", "[PAD]"}),
    ],
)
def test_ends_by_name(texts, expected):
    marked = {text: number for number, text in enumerate(texts)}
    assert ending_ids(marked, frozenset()) == {marked[text] for text in expected}
    assert ending_ids(marked, frozenset({99})) == {marked[text] for text in expected} | {99}


def test_an_ordinary_token_ends_nothing_by_its_name():
    tokens = replaced("tokens", _2041="</s>")
    assert 2041 not in load(tokens=tokens, token_type=replaced("token_type", _2041=1)).eos_ids
    assert 2041 in load(tokens=tokens, token_type=replaced("token_type", _2041=3)).eos_ids


def test_ids_that_the_file_states_end_a_generation():
    assert {2008, 2021} <= load(eot_token_id=2008, eom_token_id=2021).eos_ids
