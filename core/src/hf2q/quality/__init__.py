"""What a quantized file is worth: measured against its source, and against others.

    metrics      of logits and vectors, in float64
    text         a corpus as windows of tokens
    record       results of windows as they come, on disk, so that a long run can go on where it stopped
    perplexity   how surprised a model is by a text
    divergence   how far the predictions of a file are from those of another
    weights      of a file, or of what a checkpoint becomes, a few rows at a time
    similarity   cosines between the weights of two files
    allocate     types by evidence, within a budget of bytes
    report       all of it about several files, as a page and as a model card
    gates        the bounds of a family, and whether a file is within them;  pick  which text that is judged by
    parity       answers that were recorded, in a parity_manifest, and whether they come again
    smoke        does a family convert, load and answer here: smoke_preflight, then a run, and its smoke_transcript
    matrix       eight conversions against their peers, as a table

Nothing here prints or knows of HTTP.
"""
