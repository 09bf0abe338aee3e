"""GGUF files made from GGUF files against what llama-quantize makes of them: every byte of every file.

The digests are described in data/PROVENANCE.md.
"""

import hashlib
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from hf2q.cli.convert import command
from hf2q.convert import convert, pipeline
from hf2q.errors import UsageError
from hf2q.formats.gguf import open_gguf
from hf2q.formats.imatrix import Entry, Imatrix, write_imatrix
from hf2q.plugins import Plugins
from hf2q.testing.fixtures import require_fixture

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "requantize.golden.json").read_text())
FLAGS = {"--imatrix": str, "--output-tensor-type": str, "--token-embedding-type": str}
EXPERTS = {
    "q4_k_m": "0291aad09791088e2d9f3b4dbabded5d",
    "q2_k": "eb13276ff930a1c1cd38e33c0b7bd07e",
    "iq2_m": "ca6eb2535d4126b62f78e5b8433137a6",
}
"""Digests of what llama-quantize makes of `qwen3_5_moe` in bf16 with the matrix of `expert_matrix`."""
LISTS = ("--tensor-type", "--include-weights", "--exclude-weights")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Files of each kind, made from the fixture."""
    folder, plugins = tmp_path_factory.mktemp("sources"), Plugins.load()
    made = {name: ({}, name) for name in ("f16", "bf16", "f32", "q8_0")}
    made |= {"bf16-split": ({"split_max_size": 5_000_000}, "bf16"), "q8_0-split": ({"split_max_tensors": 50}, "q8_0")}
    return {
        name: convert(
            DATA / "qwen3_5", quant, folder / f"{name}.gguf", provenance=False, plugins=plugins, **limits
        ).output
        for name, (limits, quant) in made.items()
    }


def keywords(options):
    """The words of a command line as arguments of the command."""
    found, words = {}, iter(shlex.split(options))
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        if word in LISTS:
            found.setdefault(name, []).append(next(words))
        else:
            found[name] = next(words) if word in FLAGS else True
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['source']}-{c['quant']} {c['options']}")
def test_files_equal_the_reference(sources, tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(DATA)  # the path of the matrix, as it is given, is written into the file
    command(
        sources[case["source"]],
        quant=case["quant"],
        output=str(tmp_path / "out.gguf"),
        json=True,
        no_provenance=True,
        no_receipt=True,
        **keywords(case["options"]),
    )
    told = json.loads(capsys.readouterr().out)
    assert sorted(told["files"]) == sorted(str(path) for path in tmp_path.iterdir())
    assert [hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32] for path in told["files"]] == case["files"]


def test_quantized_tensors_are_not_changed_unless_asked(sources, tmp_path):
    with pytest.raises(UsageError, match=r"tensors of the source are quantized already: .*Q8_0 → Q4_K") as caught:
        convert(sources["q8_0"], "q4_k_m", tmp_path / "out.gguf")
    assert "--allow-requantize" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_wanted_type_is_copied(sources, tmp_path):
    made = convert(sources["q8_0"], "q8_0", tmp_path / "out.gguf", provenance=False)
    assert all(tensor.copied for tensor in made.plan.tensors)
    assert Path(made.output).read_bytes() == Path(sources["q8_0"]).read_bytes()


def test_a_checkpoint_and_its_file_give_the_same(sources, tmp_path):
    matrix = DATA / "qwen3_5.imatrix"
    files = [
        convert(source, "q4_k_m", tmp_path / f"{k}.gguf", imatrix=matrix, provenance=False).output
        for k, source in enumerate((DATA / "qwen3_5", sources["bf16"], sources["bf16-split"]))
    ]
    assert len({Path(file).read_bytes() for file in files}) == 1


def test_blocks_that_a_matrix_does_not_cover_need_a_larger_type(tmp_path):
    matrix = DATA / "qwen3_5.imatrix"
    with pytest.raises(UsageError, match=r"blk\.8\.attn_k\.weight gets the type IQ2_S .* does not know it") as caught:
        convert(DATA / "qwen3_5", "iq2_m", tmp_path / "out.gguf", imatrix=matrix)
    assert "--no-mtp" in caught.value.hint
    made = convert(DATA / "qwen3_5", "iq2_m", tmp_path / "out.gguf", imatrix=matrix, mtp=False)
    assert "IQ2_S" in {tensor.qtype for tensor in made.plan.tensors if tensor.importance}


def expert_matrix(path, source):
    """Importance for every matrix of the blocks, by a formula; one expert of each stack was never used."""
    entries = {}
    with open_gguf(source) as file:
        for tensor in file.tensors.values():
            if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
                n = tensor.shape[0] if len(tensor.shape) == 3 else 1
                sums = ((np.arange(n * tensor.columns) * 7919) % 1009).astype(np.float32).reshape(n, -1)
                counts = np.arange(n) * 3 if n > 1 else np.array([5])
                entries[tensor.name] = Entry(sums=sums, counts=counts)
    write_imatrix(path, Imatrix(entries=dict(sorted(entries.items())), datasets=("x",), chunk_size=512), "gguf")


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    """A folder with a mixture as ``bf16.gguf`` and its matrix."""
    folder = tmp_path_factory.mktemp("experts")
    convert(require_fixture("qwen3_5_moe"), "bf16", folder / "bf16.gguf", provenance=False)
    expert_matrix(folder / "m.imatrix", folder / "bf16.gguf")
    return folder


@pytest.mark.parametrize("quant", EXPERTS)
def test_each_expert_has_its_own_importance(experts, tmp_path, monkeypatch, quant):
    monkeypatch.chdir(experts)  # the path of the matrix, as it is given, is written into the file
    file, checkpoint, whole = experts / "bf16.gguf", require_fixture("qwen3_5_moe"), pipeline.PIECE
    digests = set()
    for source, piece in ((file, whole), (checkpoint, whole), (file, 3000)):  # larger and smaller than one expert
        monkeypatch.setattr(pipeline, "PIECE", piece)
        made = convert(source, quant, tmp_path / "out.gguf", imatrix="m.imatrix", provenance=False, force=True)
        digests.add(hashlib.sha256(Path(made.output).read_bytes()).hexdigest()[:32])
    assert digests == {EXPERTS[quant]}
