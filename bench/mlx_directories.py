"""Two MLX directories, tensor by tensor: ours against what mlx_lm.convert wrote with the same settings.

    mlx_lm.convert --hf-path CHECKPOINT --mlx-path theirs -q --q-bits 4 --q-group-size 64
    hf2q convert CHECKPOINT --format mlx --quant 4bit-g64 -o ours
    python bench/mlx_directories.py ours theirs

Names, shapes, dtypes and bytes have to be equal, and what config.json says about quantization. Exit code 1 when not.
"""

import json
import sys
from pathlib import Path

from safetensors import deserialize


def tensors(folder):
    """Every tensor by name: dtype, shape, bytes."""
    found = {}
    for path in sorted(folder.glob("model*.safetensors")):
        for name, one in deserialize(path.read_bytes()):
            found[name] = (one["dtype"], tuple(one["shape"]), bytes(one["data"]))
    return found


def main(ours, theirs):
    one, other = tensors(ours), tensors(theirs)
    wrong = [f"only in {ours}: {name}" for name in sorted(one.keys() - other.keys())]
    wrong += [f"only in {theirs}: {name}" for name in sorted(other.keys() - one.keys())]
    for name in sorted(one.keys() & other.keys()):
        if one[name] != other[name]:
            what = "bytes" if one[name][:2] == other[name][:2] else f"{one[name][:2]} and {other[name][:2]}"
            wrong.append(f"differs: {name} ({what})")
    told = [json.loads((folder / "config.json").read_text()).get("quantization") for folder in (ours, theirs)]
    if told[0] != told[1]:
        wrong.append(f"quantization in config.json: {told[0]} and {told[1]}")
    size = sum(len(data) for _, _, data in one.values())
    print("\n".join(wrong) if wrong else f"equal: {len(one)} tensors, {size:,} bytes")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*map(Path, sys.argv[1:])))
