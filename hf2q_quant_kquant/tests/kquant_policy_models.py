"""Small models whose tensor types were recorded once with llama-quantize, and how to record them again.

    python kquant_policy_models.py PATH/llama-quantize        # writes data/policy.json, takes some minutes

Names and shapes matter here, values do not: weights are zero.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDED = Path(__file__).parent / "data" / "policy.json"

MODELS = {
    # arch, layers, query heads, key heads, experts, and for some: rows of the model, of ffn_down
    "shared keys": {"arch": "llama", "L": 16, "heads": 8, "keys": 2, "experts": 0},
    "tied": {"arch": "llama", "L": 9, "heads": 8, "keys": 8, "experts": 0, "tied": True},
    "8 experts": {"arch": "llama", "L": 16, "heads": 8, "keys": 4, "experts": 8},
    "3 experts, fused": {"arch": "qwen35moe", "L": 8, "heads": 8, "keys": 2, "experts": 3, "fused": True},
    "4 experts": {"arch": "llama", "L": 8, "heads": 8, "keys": 8, "experts": 4, "tied": True},
    "rows of 288": {"arch": "llama", "L": 8, "heads": 8, "keys": 2, "experts": 0, "d": 288, "ff": 560},
    "falcon": {"arch": "falcon", "L": 24, "heads": 8, "keys": 8, "experts": 0},
    "70B": {"arch": "llama", "L": 80, "heads": 8, "keys": 4, "experts": 0, "recipes": ("q2_k", "q3_k_m", "q4_k_m")},
    "65B": {"arch": "llama", "L": 80, "heads": 8, "keys": 8, "experts": 0, "recipes": ("q2_k", "q3_k_m", "q4_k_m")},
    "per layer": {"arch": "llama", "L": 4, "heads": 8, "keys": 4, "experts": 0, "tied": True, "ple": True},
}

OPTIONS = (
    # model, recipe, options as llama-quantize takes them
    ("shared keys", "q4_k_m", ["--pure"]),
    ("shared keys", "q4_k_m", ["--tensor-type", "attn_v=q8_0", "--tensor-type", "blk.[0-3].=q5_k"]),
    ("shared keys", "q4_k_m", ["--tensor-type", "blk.[0-3].=q5_k", "--tensor-type", "attn_v=q8_0"]),
    ("shared keys", "q4_k_m", ["--tensor-type", r"blk\.[0-5]\.ffn_down=f16"]),
    ("shared keys", "q3_k_m", ["--tensor-type", "ATTN_V=q6_k", "--output-tensor-type", "q8_0"]),
    ("shared keys", "q5_k_m", ["--leave-output-tensor", "--token-embedding-type", "q4_0"]),
    ("shared keys", "iq4_xs", ["--pure", "--tensor-type", "ffn_(up|gate)=iq4_nl", "--imatrix"]),
    ("shared keys", "q4_0", ["--output-tensor-type", "f16", "--imatrix"]),
    ("shared keys", "q2_k_s", ["--tensor-type", "blk=q3_k"]),
    ("tied", "q4_k_m", ["--output-tensor-type", "q8_0"]),
    ("tied", "q4_k_m", ["--output-tensor-type", "q8_0", "--token-embedding-type", "q5_1"]),
    ("tied", "q4_k_m", ["--output-tensor-type", "q8_0", "--pure"]),
    ("tied", "q4_k_m", ["--output-tensor-type", "q8_0", "--tensor-type", "token_embd=q5_k"]),
    ("8 experts", "q3_k_l", ["--tensor-type", "exps=iq4_nl"]),
    ("8 experts", "q4_k_m", ["--tensor-type", "attn_k=q5_0", "--pure"]),
    ("3 experts, fused", "q4_k_m", ["--tensor-type", r"blk\.[0-2]\..*down=q3_k"]),
    ("rows of 288", "q4_k_m", ["--tensor-type", "attn_v=iq4_xs", "--output-tensor-type", "q8_0"]),
    ("rows of 288", "q4_k_m", ["--output-tensor-type", "q4_k"]),
    ("rows of 288", "q6_k", ["--pure"]),
    ("falcon", "q4_k_m", ["--pure"]),
    ("70B", "q3_k_s", ["--tensor-type", r"blk\.1.\.attn_v=q4_k"]),
    ("per layer", "q4_k_m", ["--token-embedding-type", "q8_0"]),
    ("per layer", "q4_k_m", ["--token-embedding-type", "q8_0", "--tensor-type", "per_layer=q5_1"]),
    ("per layer", "iq3_s", ["--output-tensor-type", "q5_0", "--tensor-type", "per_layer=q5_1"]),
    ("per layer", "q4_k_s", ["--token-embedding-type", "q8_0", "--tensor-type", "token_embd=q5_1"]),
)


def shapes(model):
    """Names and shapes of a model's tensors, in the order of llama-quantize."""
    found = {}
    d, ff = model.get("d", 256), model.get("ff", 512)
    found["token_embd.weight"] = (32, d)
    if model.get("ple"):
        found["per_layer_token_embd.weight"] = (32, 256)
    if not model.get("tied"):
        found["output.weight"] = (32, d)
    found["output_norm.weight"] = (d,)
    for i in range(model["L"]):
        for name, shape in _layer(model, i, d, ff):
            found[f"blk.{i}.{name}"] = shape
    return dict(sorted(found.items(), key=_order))


def _layer(model, i, d, ff):
    yield "attn_norm.weight", (d,)
    if model.get("fused") and i % 4 != 3:
        yield from {"attn_qkv.weight": (64, d), "attn_gate.weight": (32, d), "ssm_out.weight": (32, 128)}.items()
        yield from {"ssm_conv1d.weight": (64, 4), "ssm_alpha.weight": (4, d)}.items()
    elif model["arch"] == "falcon":
        yield "attn_qkv.weight", (64, d)
        yield "attn_output.weight", (32, d)
    else:
        yield from {f"attn_{part}.weight": (32, d) for part in ("q", "k", "v", "output")}.items()
    if model["experts"]:
        e = model["experts"]
        yield "ffn_gate_inp.weight", (e, d)
        yield from {"ffn_gate_exps.weight": (e, 8, d), "ffn_up_exps.weight": (e, 8, d)}.items()
        yield "ffn_down_exps.weight", (e, 8, 256)
    if not model["experts"] or model.get("fused"):
        end = "_shexp.weight" if model.get("fused") else ".weight"
        yield from {f"ffn_gate{end}": (32, d), f"ffn_up{end}": (32, d), f"ffn_down{end}": (32, ff)}.items()
    if model.get("fused"):
        yield "ffn_gate_inp_shexp.weight", (1, d)


def _order(item):
    block = re.match(r"blk\.(\d+)\.", item[0])
    return int(block[1]) if block else -1, item[0].encode()


def before(name, shape):
    """The type that a tensor has before it is quantized."""
    return "F16" if len(shape) > 1 and "_norm" not in name and "gate_inp" not in name else "F32"


def runs(recipes):
    """(model, recipe, options) of everything that is recorded."""
    for name, model in MODELS.items():
        for recipe in model.get("recipes", recipes):
            yield name, recipe, []
            yield name, recipe, ["--imatrix"]
    yield from OPTIONS


def write_model(path, model):
    """The model as a GGUF file with just the keys that llama-quantize asks for."""
    import gguf
    import numpy as np

    file = gguf.GGUFWriter(path, model["arch"])
    d, heads = model.get("d", 256), model["heads"]
    file.add_block_count(model["L"])
    file.add_context_length(128)
    file.add_embedding_length(d)
    file.add_feed_forward_length(model.get("ff", 512))
    file.add_head_count(heads)
    file.add_head_count_kv(model["keys"])
    file.add_layer_norm_rms_eps(1e-6)
    file.add_layer_norm_eps(1e-5)
    file.add_rope_dimension_count(d // heads)
    file.add_vocab_size(32)
    if model["experts"]:
        file.add_expert_count(model["experts"])
        file.add_expert_used_count(2)
        file.add_expert_feed_forward_length(256)
    if model.get("fused"):
        file.add_expert_shared_feed_forward_length(512)
        sizes = {"conv_kernel": 4, "state_size": 32, "group_count": 2, "time_step_rank": 4, "inner_size": 128}
        for key, value in sizes.items():
            file.add_uint32(f"{model['arch']}.ssm.{key}", value)
        file.add_array(f"{model['arch']}.rope.dimension_sections", [8, 4, 4, 0])
    for name, shape in shapes(model).items():
        file.add_tensor(name, np.zeros(shape, np.float16 if before(name, shape) == "F16" else np.float32))
    _finish(file)


def write_imatrix(path, model):
    """Importance for every matrix of the model."""
    import gguf
    import numpy as np

    file = gguf.GGUFWriter(path, "none")
    file.add_array("imatrix.datasets", ["none"])
    file.add_uint32("imatrix.chunk_count", 1)
    file.add_uint32("imatrix.chunk_size", 512)
    for name, shape in shapes(model).items():
        if len(shape) > 1:
            n = shape[0] if len(shape) == 3 else 1
            file.add_tensor(f"{name}.in_sum2", np.ones((n, shape[-1]), np.float32))
            file.add_tensor(f"{name}.counts", np.ones((n, 1), np.float32))
    _finish(file)


def _finish(file):
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def record(program):
    """Run llama-quantize for everything and write down the types; null where it refuses."""
    import gguf

    from hf2q_quant_kquant import RECIPES

    letters, recorded = {}, []
    with tempfile.TemporaryDirectory() as folder:
        model, matrix, output = (str(Path(folder) / name) for name in ("model.gguf", "matrix.gguf", "out.gguf"))
        at = None
        for name, recipe, options in runs([row[0] for row in RECIPES]):
            if name != at:
                write_model(model, MODELS[name])
                write_imatrix(matrix, MODELS[name])
                at = name
            words = [word for option in options for word in ([option, matrix] if option == "--imatrix" else [option])]
            Path(output).unlink(missing_ok=True)
            done = subprocess.run([program, *words, model, output, recipe, "2"], capture_output=True, text=True)
            chosen = None
            if done.returncode == 0:
                tensors = gguf.GGUFReader(output).tensors
                assert [tensor.name for tensor in tensors] == list(shapes(MODELS[name]))
                types = [tensor.tensor_type.name for tensor in tensors]
                chosen = "".join(letters.setdefault(qtype, chr(65 + len(letters))) for qtype in types)
            recorded.append({"model": name, "recipe": recipe, "options": options, "chosen": chosen})
    lines = ",\n".join(json.dumps(run) for run in recorded)
    RECORDED.write_text(f'{{"letters": {json.dumps(letters)},\n"runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    record(sys.argv[1])
