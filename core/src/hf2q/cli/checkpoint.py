"""What `hf2q info` prints about a checkpoint, here or on the Hub."""

from __future__ import annotations

from typing import Any

from hf2q.cli.output import print_table, printable, size

_WORDS = {
    "hidden_size": "hidden size",
    "layers": "layers",
    "layer_types": "layer types",
    "attention_heads": "attention heads",
    "kv_heads": "KV heads",
    "ffn_size": "FFN size",
    "experts": "experts",
    "experts_used": "experts used",
    "expert_ffn_size": "expert FFN size",
    "vocab_size": "vocabulary",
    "context_length": "context length",
}


def print_checkpoint(facts: dict[str, Any], *, tensors: bool) -> None:
    """As tables. `facts` are those of `hf2q.convert.describe.describe_checkpoint`."""
    rows = [("checkpoint", printable(facts["path"]))]
    if (origin := facts["origin"]) is not None:
        rows.append(("commit", f"{origin['commit']} ({printable(origin['revision'])})"))
    rows += [
        ("architecture", printable(facts["architecture"] or "(not named)")),
        ("model type", printable(facts["model_type"] or "(not named)")),
        ("arch", printable(facts["arch"] or "none that an installed plugin knows")),
        ("parameters", f"{facts['parameters']:,}"),
        ("tensors", f"{len(facts['tensors'])}, {size(facts['tensor_bytes'])}"),
        ("files", f"{len(facts['files'])}, {size(sum(file['size'] for file in facts['files']))}"),
    ]
    rows += [(word, _value(facts["config"][key])) for key, word in _WORDS.items() if key in facts["config"]]
    print_table(rows)
    print("\ndtypes")
    print_table(
        [
            (dtype, f"{total['tensors']} tensors", f"{total['parameters']:,} weights", size(total["nbytes"]))
            for dtype, total in facts["dtypes"].items()
        ],
        indent="  ",
    )
    print("\nsize as GGUF")
    if facts["sizes"]:
        print_table([(one["quant"], size(one["nbytes"])) for one in facts["sizes"]], indent="  ")
    else:
        print(f"  not known: {printable(facts['sizes_unknown'] or 'no recipe is installed')}")
    if tensors:
        print("\ntensors")
        print_table(
            [
                (printable(t["name"]), " x ".join(map(str, t["shape"])), t["dtype"], size(t["nbytes"]))
                for t in facts["tensors"]
            ],
            indent="  ",
        )


def _value(value: Any) -> str:
    if isinstance(value, list):
        return printable(", ".join(str(one) for one in value), 80)
    return f"{value:,}"
