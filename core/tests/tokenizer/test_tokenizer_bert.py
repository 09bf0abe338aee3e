"""BERT's tokenizer: the metadata that llama.cpp's converter writes, and the ids and text of tokenizer.json."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import BERT, DATA, PREFIX, RECORDS, Changed, as_golden, metadata, original, streamed

from hf2q.errors import ConfigError, LoadError
from hf2q.formats.tokenizer import load_tokenizer, read_tokenizer
from hf2q.types import PreTokenizer

tokenizers = pytest.importorskip("tokenizers")

METADATA = metadata("bert")
TOKENIZER = load_tokenizer(METADATA, ())
REFERENCE = tokenizers.Tokenizer.from_file(str(DATA / "bert" / "tokenizer.json"))
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


@pytest.fixture
def changed(tmp_path):
    return Changed("bert", tmp_path)


# --------------------------------------------------------------------------------------------------------- converting


def test_golden_fields_types_values_and_order():
    golden = json.loads((DATA / "golden.json").read_text("utf-8"))["bert"]
    config = original("bert")["config.json"]
    assert [as_golden(field) for field in read_tokenizer(DATA / "bert", 1000, config, RECORDS)] == golden


def test_words_begin_with_a_phantom_space(changed):
    found = changed.tokens(vocab_size=1002)
    assert found[:2] == [("[PAD]", CONTROL), ("[UNK]", CONTROL)]
    assert found[changed.vocab["the"]] == ("\u2581the", NORMAL)
    assert found[changed.vocab["##in"]] == ("in", NORMAL)
    assert found[1000:] == [("\u2581[PAD1000]", UNUSED), ("\u2581[PAD1001]", UNUSED)]


def test_added_tokens(changed):
    texts = ["NewTok", "<|sp|>", "isn't ok . x", "##foo", "a\u2581b"]
    numbers = [changed.add(text, special=text == "<|sp|>", normalized=text == "NewTok") for text in texts]
    found = changed.tokens()
    assert [found[number] for number in numbers] == [
        ("\u2581NewTok", USER_DEFINED),
        ("<|sp|>", CONTROL),
        ("\u2581isn't ok. x", USER_DEFINED),
        ("foo", USER_DEFINED),
        ("\u2581a b", USER_DEFINED),
    ]


def test_token_types_come_first(changed):
    changed.config["type_vocab_size"] = 5
    first, *_ = changed.read()
    assert (first.key, first.type.name, first.value) == ("tokenizer.ggml.token_type_count", "UINT32", 5)
    del changed.config["type_vocab_size"]
    assert changed.values()["token_type_count"] == 1


@pytest.mark.parametrize(
    ("lowercase", "strip", "expected"),
    [
        (True, None, [("lowercase", True)]),
        (False, None, [("lowercase", False)]),
        (True, False, [("lowercase", True), ("strip_accents", False)]),
        (False, True, [("lowercase", False), ("strip_accents", True)]),
    ],
)
def test_flags_of_the_normalizer_and_what_they_do(changed, lowercase, strip, expected):
    changed.tokenizer["normalizer"].update(lowercase=lowercase, strip_accents=strip)
    changed.settings.update(do_lower_case=lowercase, strip_accents=strip)
    changed.vocab.update({"##\u00e9": 1000, "C": 1001, "##\u0301": 1002})
    changed.config["vocab_size"] = 1003
    fields = changed.read()
    key = f"{PREFIX}normalizer."
    assert [(f.key.removeprefix(key), f.value) for f in fields if f.key.startswith(key)] == expected
    tokenizer, library = changed.load(), changed.library()
    for text in ("Caf\u00e9 caf\u00e9", "CAFE\u0301 C\u00e9", "\u0130stanbul C"):
        assert tokenizer.encode(text) == library.encode(text).ids


def test_ids_outside_the_vocabulary_are_left_out(changed):
    changed.config.update(eos_token_id=5000, bos_token_id=7)
    values = changed.values()
    assert (values["bos_token_id"], values["eos_token_id"]) == (2, 3)
    del changed.settings["sep_token"]
    changed.tokenizer["post_processor"] = None
    changed.config["sep_token_id"] = 3
    assert "eos_token_id" not in changed.values()


@pytest.mark.parametrize("step", [None, {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}])
def test_other_ways_to_put_marks_around_a_text(changed, step):
    changed.tokenizer["post_processor"] = step
    assert not [key for key in changed.values() if key.startswith("add_")]
    assert changed.load().encode("the") == [2, changed.vocab["the"], 3]


def test_the_name_may_depend_on_the_size_of_the_vocabulary(changed):
    known = [PreTokenizer(name="own", model="bert", normalizer="BertNormalizer", n_tokens=1000), BERT]
    assert changed.values(known=known)["pre"] == "own"
    changed.vocab["##\u00e9"] = 1000
    changed.config["vocab_size"] = 1001
    assert changed.values(known=known)["pre"] == "bert-bge"
    assert changed.values(known=known, pre="own")["pre"] == "own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.tokenizer.update(normalizer=None), "no known pre-tokenizer"),
        (lambda c: c.tokenizer["normalizer"].update(clean_text=False), "no known pre-tokenizer"),
        (lambda c: c.tokenizer["normalizer"].update(handle_chinese_chars=False), "no known pre-tokenizer"),
        (lambda c: c.tokenizer.update(pre_tokenizer={"type": "Whitespace"}), '"type":"Whitespace".*"WordPiece"'),
        (lambda c: c.tokenizer["model"].update(max_input_chars_per_word=200), "max_input_chars_per_word is 200"),
        (lambda c: c.tokenizer["model"].update(unk_token="[MISSING]"), "unk_token is '.MISSING.', which is not in"),
        (lambda c: c.tokenizer["model"].update(unk_token="the"), "unknown token 'the' has the id"),
        (lambda c: c.tokenizer["decoder"].update(prefix=""), "decoder is"),
        (lambda c: c.settings.update(do_lower_case=False), "do_lower_case is false, but the normalizer"),
        (lambda c: c.settings.update(strip_accents=False), "strip_accents is false, but the normalizer"),
        (lambda c: c.settings.update(tokenize_chinese_chars=False), "tokenize_chinese_chars is false, but"),
        (lambda c: c.settings.update(do_lower_case="yes"), "do_lower_case is a string, expected a boolean"),
        (lambda c: c.tokenizer["normalizer"].update(lowercase=1), "lowercase is a number, expected a boolean"),
        (lambda c: c.vocab.update({"##\u2581the": c.vocab.pop("##l")}), "two tokens are written '\u2581the'"),
        (lambda c: c.vocab.pop("!"), "none with the id 5"),
        (lambda c: c.add("<new>", single_word=True), "'<new>' has single_word set"),
    ],
)
def test_what_gguf_cannot_express_is_refused(changed, change, message):
    change(changed)
    with pytest.raises(ConfigError, match=message):
        changed.read()


@pytest.mark.parametrize("missing", ["cls", "sep"])
def test_without_the_marks_around_a_text(changed, missing):
    changed.tokenizer["post_processor"] = None
    del changed.settings[f"{missing}_token"]
    with pytest.raises(ConfigError, match=rf"no file says which id the token \[{missing.upper()}\] has"):
        changed.read()


def test_more_tokens_than_rows(changed):
    with pytest.raises(ConfigError, match=r"vocab_size = 999\nhint: .*resize_token_embeddings"):
        changed.read(vocab_size=999)


LINES = (DATA / "bert" / "vocab.txt").read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (LINES, None),
        ([*LINES, "[NEW]"], None),
        (LINES[:-1], f"None for token 999, tokenizer.json has {LINES[-1]!r}"),
        ([*LINES, "[OTHER]"], r"'\[OTHER\]' for token 1000, tokenizer.json has '\[NEW\]'"),
        ([*LINES[:5], "?", *LINES[6:]], "'.' for token 5, tokenizer.json has '!'"),
        ([*LINES[:6], *LINES[5:]], "'!' for token 6, tokenizer.json has"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocab_txt_must_agree(changed, lines, message, end):
    changed.add("[NEW]")
    (changed.folder / "vocab.txt").write_bytes("".join(line + end for line in lines).encode())
    if message is None:
        assert changed.read()
        return
    with pytest.raises(ConfigError, match=message) as caught:
        changed.read()
    assert "remove the one that is wrong" in caught.value.hint


# ------------------------------------------------------------------------------------------------------------ running

PIECES = [
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[UNK]",
    "[PAD]",
    "[cls]",
    "##ing",
    "don't do not , . ? !",
    "\u00e9t\u00e9 CAF\u00c9",
]
PIECES += [
    "\u4e16\u754c\u4f60",
    "\U0001f600",
    "\r\n\t",
    "\x00\x07\ufffd",
    "\u2581the",
    "a" * 100,
    "a" * 101,
    "\u0130\u0131",
]
TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(PIECES)), max_size=6).map("".join)
IDS = st.lists(st.integers(0, TOKENIZER.n_vocab - 1), max_size=30)


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_any_text_encodes_as_tokenizer_json_does(text):
    ids = TOKENIZER.encode(text)
    assert ids == REFERENCE.encode(text).ids
    assert TOKENIZER.encode(text, add_bos=False) == REFERENCE.encode(text, add_special_tokens=False).ids == ids[1:-1]


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_special_tokens_in_plain_text_stay_text(text):
    ids = TOKENIZER.encode(text, special=False, add_bos=False)
    assert not TOKENIZER.special_ids - {TOKENIZER.unk_id} & set(ids)


@given(IDS)
@settings(max_examples=300, deadline=None)
def test_any_ids_decode_as_tokenizer_json_does(ids):
    assert TOKENIZER.decode(ids) == streamed(TOKENIZER, ids) == REFERENCE.decode(ids, skip_special_tokens=False)
    skipping = TOKENIZER.decode(ids, skip_special=True)
    assert skipping == streamed(TOKENIZER, ids, skip_special=True) == REFERENCE.decode(ids, skip_special_tokens=True)


def test_attributes():
    assert (TOKENIZER.model, TOKENIZER.pre, TOKENIZER.n_vocab) == ("bert", "bert-bge", 1000)
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id, TOKENIZER.pad_id, TOKENIZER.unk_id) == (2, 3, 0, 1)
    assert (TOKENIZER.add_bos, TOKENIZER.add_eos) == (True, True)
    the = TOKENIZER.id_of("\u2581the")
    assert TOKENIZER.encode("the", add_bos=True) == [2, the]
    assert (TOKENIZER.token_text(the), TOKENIZER.token_bytes(the)) == ("\u2581the", b" the")
    assert TOKENIZER.token_bytes(TOKENIZER.id_of("in")) == b"in"
    assert TOKENIZER.token_bytes(TOKENIZER.id_of("\u2581.")) == b"."


def test_a_decoder_starts_anew_after_its_end():
    the = TOKENIZER.id_of("\u2581the")
    stream = TOKENIZER.stream()
    assert [stream.push(the), stream.push(the), stream.flush(), stream.push(the)] == ["the", " the", "", "the"]


def test_added_tokens_are_found_in_normalised_text(changed):
    number = changed.add("NewTok", normalized=True)
    changed.add("<|Sp|>", special=True)
    tokenizer, library = changed.load(), changed.library()
    for text in ("a newtok NEWTOK xNewTokx", "<|Sp|> <|sp|>", "the<|Sp|>newtok"):
        assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.encode("NEWTOK", special=False, add_bos=False) == [number]
    assert tokenizer.decode([number, number]) == "NewTok NewTok"


def load(**changes):
    found = {**METADATA, **{PREFIX + key: value for key, value in changes.items()}}
    return load_tokenizer({key: value for key, value in found.items() if value is not None}, ())


def test_ids_that_a_file_leaves_out():
    def moved(values):
        return (*("x" * (n + 1) for n in range(100)), values[1], values[2], values[3], values[4], *values[100:996])

    tokens = moved(METADATA[f"{PREFIX}tokens"])
    types = tuple(CONTROL if text.startswith("[") and len(text) > 2 else NORMAL for text in tokens)
    gone = dict.fromkeys(f"{role}_token_id" for role in ("bos", "eos", "unknown", "seperator", "padding", "mask"))
    tokenizer = load(tokens=tokens, token_type=types, **gone)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id) == (101, 102, 100, 0)


def test_lower_case_unless_the_file_says_otherwise():
    loose = load(**{"normalizer.lowercase": None})
    assert loose.encode("The CAF\u00c9") == TOKENIZER.encode("The CAF\u00c9")
    strict = load(**{"normalizer.lowercase": False})
    assert strict.encode("T") != TOKENIZER.encode("T")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": None}, "ggml.pre is missing"),
        ({"unknown_token_id": 5000}, "unknown_token_id is missing"),
        ({"seperator_token_id": 5000}, "add_eos_token is set"),
        ({"normalizer.lowercase": 1}, "normalizer.lowercase is int, expected a truth value"),
        ({"normalizer.strip_accents": "no"}, "normalizer.strip_accents is str"),
        ({"tokens": ("\u2581##a", "a", *METADATA[f"{PREFIX}tokens"][2:])}, "two tokens stand for the same part"),
    ],
)
def test_damaged_metadata(changes, message):
    if "tokens" in changes:
        changes |= {"token_type": (NORMAL, NORMAL, *METADATA[f"{PREFIX}token_type"][2:]), "unknown_token_id": 4}
        changes["tokens"] = tuple(f"{t}x" if n > 4 and t == "a" else t for n, t in enumerate(changes["tokens"]))
    with pytest.raises(LoadError, match=message):
        load(**changes)
