"""Gemma 4's tokenizer: the metadata that llama.cpp's converter writes, and the ids and text of tokenizer.json."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import BERT, DATA, GEMMA4, PLAIN, PREFIX, RECORDS, Changed, as_golden, metadata, original, streamed

from hf2q.errors import ConfigError, LoadError, RequestError
from hf2q.formats.tokenizer import load_tokenizer, read_tokenizer

tokenizers = pytest.importorskip("tokenizers")

METADATA = metadata("gemma4")
TOKENIZER = load_tokenizer(METADATA, ())
REFERENCE = tokenizers.Tokenizer.from_file(str(DATA / "gemma4" / "tokenizer.json"))
MARKS = [entry["content"] for entry in original("gemma4")["tokenizer.json"]["added_tokens"]]
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
VIDEO = 23


@pytest.fixture
def changed(tmp_path):
    return Changed("gemma4", tmp_path)


# --------------------------------------------------------------------------------------------------------- converting


def test_golden_fields_types_values_and_order():
    golden = json.loads((DATA / "golden.json").read_text("utf-8"))["gemma4"]
    config = original("gemma4")["config.json"]
    assert [as_golden(field) for field in read_tokenizer(DATA / "gemma4", 2048, config, RECORDS)] == golden


def test_types_of_tokens(changed):
    found = changed.tokens()
    assert found[0] == ("<pad>", CONTROL)
    assert found[15:17] == [("<|turn>", CONTROL), ("<turn|>", CONTROL)]
    assert [found[number] for number in (7, 11, 13)] == [
        ("<|tool_call>", USER_DEFINED),
        ('<|"|>', USER_DEFINED),
        ("<|channel>", USER_DEFINED),
    ]
    byte = changed.vocab["<0x0A>"]
    assert found[byte] == ("<0x0A>", BYTE)
    assert found[changed.vocab["\u2581the"]] == ("\u2581the", NORMAL)


def test_only_named_special_tokens_are_control(changed, caplog):
    assert changed.tokens()[VIDEO] == ("<|video|>", NORMAL)
    assert "1 added tokens are not named in tokenizer_config.json" in caplog.text
    changed.settings["extra_special_tokens"] = {"video_token": "<|video|>"}
    assert changed.tokens()[VIDEO] == ("<|video|>", CONTROL)
    changed.settings["extra_special_tokens"] = ["<|video|>"]
    assert changed.tokens()[VIDEO] == ("<|video|>", CONTROL)


def test_tokens_beyond_the_vocabulary(changed):
    plain, special = changed.add("a \u2581b", normalized=True), changed.add("<special>", special=True)
    named = changed.add("<|named|>", special=True)
    changed.settings["my_token"] = "<|named|>"
    found = changed.tokens()
    assert found[plain] == ("a \u2581b", USER_DEFINED)
    assert found[special] == ("<special>", USER_DEFINED)
    assert found[named] == ("<|named|>", CONTROL)


@pytest.mark.parametrize(("name", "kind"), [("GemmaTokenizer", CONTROL), ("PreTrainedTokenizerFast", NORMAL)])
def test_the_class_names_what_the_files_do_not(changed, name, kind):
    changed.settings["tokenizer_class"] = name
    del changed.settings["mask_token"]
    assert changed.tokens()[4] == ("<mask>", kind)
    assert "mask_token_id" not in changed.values()


def test_rows_to_spare_become_unused_tokens(changed):
    values = changed.values(vocab_size=2052)
    assert values["tokens"][2048:] == tuple(f"[PAD{number}]" for number in range(2048, 2052))
    assert values["token_type"][2048:] == (UNUSED,) * 4
    assert values["scores"] == (-1000.0,) * 2052


@pytest.mark.parametrize("flag", [None, False, True])
def test_bos_is_always_on(changed, flag):
    changed.tokenizer["post_processor"] = None
    changed.settings.pop("add_bos_token")
    if flag is not None:
        changed.settings["add_bos_token"] = flag
    fields = changed.read()
    assert [field.value for field in fields if field.key == f"{PREFIX}add_bos_token"] == [True]
    keys = [field.key for field in fields]
    assert (keys[-1] == f"{PREFIX}add_bos_token") == (flag is None)


def test_merges_in_the_old_spelling(changed):
    pairs = changed.values()["merges"]
    changed.tokenizer["model"]["merges"] = [" ".join(pair) for pair in changed.tokenizer["model"]["merges"]]
    assert changed.values()["merges"] == pairs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.tokenizer.update(normalizer=None), "no known pre-tokenizer"),
        (lambda c: c.tokenizer["normalizer"].update(content="_"), "no known pre-tokenizer"),
        (
            lambda c: c.tokenizer.update(
                normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]}
            ),
            r'no known pre-tokenizer.*"type":"Prepend".*"byte_fallback":true',
        ),
        (lambda c: c.tokenizer["pre_tokenizer"].update(pattern={"String": "x"}), "no known pre-tokenizer"),
        (lambda c: c.tokenizer["model"].update(ignore_merges=True), r"gemma4 \(differs in ignore_merges\)"),
        (lambda c: c.tokenizer["model"].update(dropout=0.1), r"model\.dropout is 0\.1"),
        (lambda c: c.tokenizer["decoder"]["decoders"].pop(), "decoder is .*ByteFallback.*expected Replace of U"),
        (lambda c: c.tokenizer["decoder"]["decoders"].append({"type": "Strip"}), "decoder is"),
        (lambda c: c.tokenizer.update(decoder={"type": "ByteLevel"}), "decoder is"),
        (lambda c: c.tokenizer["model"].update(type="Unigram"), r"model\.type is 'Unigram'"),
        (lambda c: c.vocab.update({"<0x0a>": c.vocab.pop("<0x0A>")}), "lacks 1 of the 256 byte tokens.*'<0x0A>'"),
        (lambda c: c.vocab.pop("<pad>"), "none with the id 0"),
        (lambda c: c.tokenizer["added_tokens"][5].update(lstrip=True), "has lstrip set"),
        (lambda c: c.tokenizer["model"]["merges"].append(["t", "zz"]), r"merges\[1677\] needs 'zz'"),
        (lambda c: c.tokenizer["model"].update(merges=[]), "merges is empty"),
        (lambda c: c.tokenizer["added_tokens"].append({"id": 9, "content": "<bos>"}), "'<bos>' has the id 9"),
        (lambda c: c.add("[PAD2049]") and c.add("[PAD2049]"), "'<?.PAD2049.>?' has the id"),
    ],
)
def test_what_gguf_cannot_express_is_refused(changed, change, message):
    for table in (changed.settings["added_tokens_decoder"],):
        table.pop("5")
    change(changed)
    with pytest.raises(ConfigError, match=message):
        changed.read()


def test_without_a_bos_token(changed):
    del changed.settings["bos_token"], changed.special_map["bos_token"], changed.config["text_config"]["bos_token_id"]
    changed.tokenizer["post_processor"] = None
    with pytest.raises(ConfigError, match=r"no file says which id the bos token has.*\nhint: name it as bos_token"):
        changed.read()


def test_more_tokens_than_rows(changed):
    changed.add("<new>")
    with pytest.raises(
        ConfigError, match=r"id 2048 \('<new>'\), config\.json says vocab_size = 2048\nhint: .*resize_token_embeddings"
    ):
        changed.read(vocab_size=2048)


def test_two_entries_of_one_text(changed):
    changed.read()
    path = changed.folder / "tokenizer.json"
    path.write_text(path.read_text("utf-8").replace('"<pad>": 0,', '"<pad>": 0, "<pad>": 7,'), "utf-8")
    with pytest.raises(ConfigError, match=r"model\.vocab has two entries '<pad>'"):
        read_tokenizer(changed.folder, 2048, changed.config, RECORDS)


def test_a_family_without_such_a_tokenizer_refuses_it(changed):
    with pytest.raises(ConfigError, match=r"plain \(differs in model"):
        changed.read(known=[PLAIN])


def test_pre_names_one_of_the_same_model(changed):
    changed.tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    assert changed.values(pre="gemma4")["model"] == "gemma4"
    with pytest.raises(ConfigError, match=r"'bert-bge' is one of bert tokenizers, .* is a gemma4 one"):
        changed.read(known=[BERT, GEMMA4], pre="bert-bge")


# ------------------------------------------------------------------------------------------------------------ running

PIECES = [*MARKS, "\n\n\n", "   ", "\u2581", "\u2581\u2581 ", "<0x41>", " the cat's", "\U0001f600\u200d\U0001f469"]
PIECES += [
    "\u4e16\u754c",
    "e\u0301",
    "\r\n\t",
    "\x00\x7f\u2028",
    "[PAD7]",
    "<unused5>",
    "<|turn",
    "|><|turn>|>",
    "\ufffd",
]
TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(PIECES)), max_size=6).map("".join)
IDS = st.lists(st.integers(0, TOKENIZER.n_vocab - 1), max_size=30)


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_any_text_encodes_as_tokenizer_json_does(text):
    ids = TOKENIZER.encode(text, add_bos=False)
    assert ids == REFERENCE.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.encode(text) == REFERENCE.encode(text).ids == [2, *ids]
    assert TOKENIZER.decode(ids) == REFERENCE.decode(ids, skip_special_tokens=False)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_special_tokens_in_plain_text_stay_text(text):
    ids = TOKENIZER.encode(text, special=False, add_bos=False)
    assert not {*TOKENIZER.special_ids, *range(5, 24)} & set(ids)
    assert TOKENIZER.decode(ids) == text.replace("\u2581", " ")


@given(IDS)
@settings(max_examples=300, deadline=None)
def test_any_ids_decode_as_tokenizer_json_does(ids):
    assert TOKENIZER.decode(ids) == streamed(TOKENIZER, ids) == REFERENCE.decode(ids, skip_special_tokens=False)
    shown = [token for token in ids if token not in TOKENIZER.special_ids]
    skipping = TOKENIZER.decode(ids, skip_special=True)
    assert skipping == streamed(TOKENIZER, ids, skip_special=True) == TOKENIZER.decode(shown)


@given(st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_piece_of_a_stream_holds_a_part_of_a_character(text):
    text = text.replace("\u2581", " ")
    stream, seen = TOKENIZER.stream(), ""
    for token in TOKENIZER.encode(text, add_bos=False):
        seen += stream.push(token)
        assert text.startswith(seen)
    assert seen + stream.flush() == text


def test_bytes_become_text_together_or_not_at_all():
    one, two, three, bad = (TOKENIZER.id_of(f"<0x{byte:02X}>") for byte in b"\xe2\x82\xac\xff")
    (letter,) = TOKENIZER.encode("a", add_bos=False)
    stream = TOKENIZER.stream()
    assert [stream.push(token) for token in (one, two, three, letter)] == ["", "", "", "\u20aca"]
    assert [stream.push(token) for token in (one, two, three, bad, letter)][4] == "\ufffd\ufffd\ufffd\ufffda"
    assert [stream.push(one), stream.flush(), stream.push(letter)] == ["", "\ufffd", "a"]


def test_attributes():
    assert (TOKENIZER.model, TOKENIZER.pre, TOKENIZER.n_vocab) == ("gemma4", "gemma4", 2048)
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id, TOKENIZER.pad_id, TOKENIZER.unk_id) == (2, 1, 0, None)
    assert (TOKENIZER.add_bos, TOKENIZER.add_eos, TOKENIZER.suppressed_ids) == (True, False, frozenset())
    assert {TOKENIZER.token_text(number) for number in TOKENIZER.eos_ids} == {"<eos>", "<turn|>", "<|tool_response>"}
    (space_the,) = TOKENIZER.encode(" the", add_bos=False)
    assert (TOKENIZER.token_text(space_the), TOKENIZER.token_bytes(space_the)) == ("\u2581the", b" the")
    assert TOKENIZER.token_bytes(TOKENIZER.id_of("<0xE2>")) == b"\xe2"
    assert TOKENIZER.id_of("\u2581the") == space_the


def test_a_marker_that_no_merge_makes_is_read_though_it_is_ordinary_in_the_file():
    assert METADATA[f"{PREFIX}token_type"][VIDEO] == NORMAL
    assert TOKENIZER.encode("a<|video|>", add_bos=False)[-1] == VIDEO
    assert VIDEO in TOKENIZER.special_ids
    tokens = list(METADATA[f"{PREFIX}tokens"])
    gone = set(tokens[2046:])
    tokens[2046:] = "<|vid", "eo|>"
    merges = [line for line in METADATA[f"{PREFIX}merges"] if not gone & {*line.split(" "), line.replace(" ", "", 1)}]
    assert VIDEO in load(tokens=tokens, merges=merges).special_ids
    assert VIDEO not in load(tokens=tokens, merges=[*merges, "<|vid eo|>"]).special_ids


def test_added_tokens_are_read(changed):
    number = changed.add("<new one>")
    tokenizer, library = changed.load(), changed.library()
    for text in ("a <new one>b", "<new  one>", "<new\u2581one>"):
        assert tokenizer.encode(text) == library.encode(text).ids
    assert number in tokenizer.encode("<new one>", special=False)
    assert tokenizer.decode([number]) == "<new one>"


def test_unused_rows_stand_for_nothing(changed):
    tokenizer = changed.load(vocab_size=2050)
    assert tokenizer.decode([2049, *tokenizer.encode("hi"), 2048], skip_special=True) == "hi"
    assert tokenizer.encode("[PAD2049]", add_bos=False) == TOKENIZER.encode("[PAD2049]", add_bos=False)


def load(**changes):
    found = {**METADATA, **{PREFIX + key: value for key, value in changes.items()}}
    return load_tokenizer({key: value for key, value in found.items() if value is not None}, ())


def test_suppressed_ids_outside_the_vocabulary_are_left_out():
    assert load(suppress_tokens=(5, 2047, 2048, -1)).suppressed_ids == {5, 2047}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merges": None}, "merges is missing"),
        ({"scores": None, "tokens": None}, "tokens is missing"),
        ({"bos_token_id": None}, "add_bos_token is set"),
        ({"suppress_tokens": "x"}, "suppress_tokens is str"),
        ({"token_type": tuple(6 if n == 100 else 1 for n in range(2048))}, "expected a byte like"),
    ],
)
def test_damaged_metadata(changes, message):
    if "token_type" in changes:
        changes["tokens"] = tuple("xyz" if n == 100 else f"t{n}" for n in range(2048))
    with pytest.raises(LoadError, match=message):
        load(**changes)


def test_a_lone_surrogate_is_refused():
    with pytest.raises(RequestError, match="surrogate"):
        TOKENIZER.encode("a\ud800b")


def test_a_file_that_says_otherwise_gets_bos_all_the_same():
    assert load(add_bos_token=False).encode("hi")[0] == 2
