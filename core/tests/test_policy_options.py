"""How options are spelled, and what is said of names that are no recipes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf2q.errors import MissingFileError, UsageError
from hf2q.policy import parse_qtype, parse_tensor_type, read_tensor_types
from hf2q.policy.options import compile_pattern
from hf2q.policy.refused import APEX_TIERS, NUMBERS, REFUSED, RETIRED, refusal


def test_types_in_any_case():
    assert parse_qtype("q4_K", "--x") == "Q4_K"
    assert parse_qtype(" bf16 ", "--x") == "BF16"
    with pytest.raises(UsageError, match="--x: 'q4_k_m' is no type of tensor") as caught:
        parse_qtype("q4_k_m", "--x")
    assert "Q4_K" in caught.value.hint


def test_pattern_and_type():
    assert parse_tensor_type("ffn_down=q6_k") == ("ffn_down", "Q6_K")
    assert parse_tensor_type(r"blk\.(?=1)=f16") == (r"blk\.(?=1)", "F16")


@pytest.mark.parametrize("text", ["", "=", "ffn", "ffn=", "=q8_0", "ffn=q4_k_m", "ffn=q8_0 "[:-1] + "x"])
def test_what_is_no_pair_is_refused(text):
    with pytest.raises(UsageError, match="--tensor-type"):
        parse_tensor_type(text)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{2,1}", r"\D", r"a\\\W", "[[:digit:]]", "[a--b]", r"\Z", "(?P<x"])
def test_patterns_that_mean_something_else_are_refused(pattern):
    with pytest.raises(UsageError, match="--t"):
        compile_pattern(pattern, "--t")


def test_patterns_are_folded_and_searched():
    assert compile_pattern("FFN_(up|GATE)", "--t").search("blk.0.ffn_gate.weight")
    assert compile_pattern(r"blk\.\d\.", "--t").search("blk.7.ffn_up.weight")
    assert compile_pattern(r"a\\D", "--t").search(r"a\d")  # a backslash and a letter, not a class
    assert not compile_pattern(r"\d", "--t").search("٣")


@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused(text):
    with contextlib.suppress(UsageError):
        compile_pattern(text, "--t").search("blk.0.attn_q.weight")


def test_a_file_of_pairs(tmp_path):
    path = tmp_path / "types.txt"
    path.write_text("attn_v=q8_0 attn_k=q6_k\n# ffn=q2_k\r\n\n  ffn_down=bf16\n")
    assert read_tensor_types(path) == (("attn_v", "Q8_0"), ("attn_k", "Q6_K"), ("ffn_down", "BF16"))
    path.write_text("attn_v=q8_0\nattn_k q6_k\n")
    with pytest.raises(UsageError, match=r"types.txt, line 2: 'attn_k' is not of the form"):
        read_tensor_types(path)
    with pytest.raises(MissingFileError, match=r"nothing\.txt"):
        read_tensor_types(tmp_path / "nothing.txt")


def test_numbers_are_refused_with_the_name():
    assert refusal("15").hint == "--quant q4_k_m"
    assert "number of a file type" in refusal("15").message
    assert refusal("19").message == refusal("iq2_xxs").message
    assert "no file type has" in refusal("4").message
    assert "no file type has" in refusal("99999999999999999999").message


@pytest.mark.parametrize("name", [*REFUSED, *RETIRED, *map(str, NUMBERS), *(f"apex-{tier}" for tier in APEX_TIERS)])
def test_every_refusal_says_what_to_do(name):
    for spelled in (name, name.upper()):
        error = refusal(spelled)
        assert repr(spelled) in error.message or name.isdigit()
        assert error.hint
        assert error.exit_code == 3


def test_reserved_names():
    assert "apex-balanced" in refusal("apex").hint
    assert "apex-i-compact" in refusal("apex").hint
    assert "--tensor-type-file" in refusal("apex-custom").hint
    assert "--tensor-type-file" in refusal("apex-i-nano").hint
    assert "apex-mini" in refusal("apex-huge").hint
    assert "training" in refusal("dwq").message
    assert refusal("dwq-4-6").hint == refusal("dwq").hint
    assert refusal("imatrix-q4_k_m").hint == "--quant q4_k_m --imatrix FILE"
    assert "ternary" in refusal("tq1_0").message


@pytest.mark.parametrize("name", ["", "q4_k_m", "q99", "f16", "apexx", "q4-k"])
def test_other_names_are_none_of_its_business(name):
    assert refusal(name) is None
