"""The types that llama.cpp's converter gives this family's tensors, whatever type it is asked for.

Source: llama.cpp, conversion/deepseek.py, `DeepseekV4Model.tensor_force_quant` and `_write_mxfp4_expert_tensor`;
conversion/base.py, `ModelBase.prepare_tensors` (rows that are no whole blocks become F16).
"""

from __future__ import annotations

from hf2q.types import TensorSpec

Q8_BLOCK = 32
BY_DTYPE = {"F4_E2M1": "MXFP4", "F8_E4M3": "Q8_0", "BF16": "BF16", "F32": "F32"}


def auto_type(spec: TensorSpec, dtype: str) -> str:
    """The type of a matrix whose source has this dtype; "" for the checkpoint's 16-bit type."""
    qtype = BY_DTYPE.get(dtype, "")
    return "F16" if qtype == "Q8_0" and spec.shape[-1] % Q8_BLOCK else qtype
