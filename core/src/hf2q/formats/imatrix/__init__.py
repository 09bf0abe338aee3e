"""Importance matrices: how much each input column of each tensor matters, by its mean squared activation.

    record   `Imatrix`, `Entry`: what a file says, whichever its format
    weights  what a codec gets for one tensor
    gguf     ``.imatrix.gguf``: sums and counts
    legacy   ``.dat``: means only, as llama.cpp wrote them before
    files    reading with detection by content, writing

Entries are named by the GGUF tensors they belong to. Source: llama.cpp, tools/imatrix/imatrix.cpp,
common/imatrix-loader.cpp, tools/quantize/quantize.cpp, src/llama-quant.cpp.
"""

from hf2q.formats.imatrix.files import FORMATS, imatrix_format, read_imatrix, write_imatrix
from hf2q.formats.imatrix.record import Entry, Imatrix

__all__ = ["FORMATS", "Entry", "Imatrix", "imatrix_format", "read_imatrix", "write_imatrix"]
