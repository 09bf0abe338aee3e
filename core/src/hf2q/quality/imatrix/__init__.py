"""Importance matrices, computed: what goes into each weight while a model reads a text.

    sums     squared activations of each tensor, added up
    watched  `Ops` that add up what goes into their products; weights that keep their names
    chunks   a corpus as chunks of tokens
    state    sums so far, on disk, so that a long run can go on where it stopped
    compute  all of these together: a GGUF file and a corpus become an `Imatrix`
    produce  the same from whatever `hf2q.convert` takes, by way of a temporary file
    compare  two matrices, and whether they agree

Rules as llama-imatrix (llama.cpp, tools/imatrix/imatrix.cpp, `collect_imatrix` and `compute_imatrix`).
"""
