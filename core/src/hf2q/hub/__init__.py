"""Checkpoints and GGUF files on the Hugging Face Hub: one exact commit, only what is needed, verified.

    reference  what a user may write for a repository
    settings   endpoint, token, offline mode, timeout and cache folder
    client     requests through the session of huggingface_hub, with bounded retries
    answers    its errors as ours
    api        a revision becomes one commit and the list of its files with their digests
    paths      names of files that a server may give, and which of them a conversion needs
    cache      the folder: verified contents by digest, a view of them by commit
    digests    how contents are checked: LFS by SHA-256, Git by the SHA-1 of the blob
    transfer   one file into the cache, resumed and verified;  many at a time
    ranges     parts of files that stay where they are
    repository the way in: `open_repository`, `Repository`
    skeleton   headers of weights alone, as sparse files that the readers of `hf2q.formats` can open

The `huggingface_hub` package knows the Hub: its settings, tokens, ids, addresses, metadata and errors. What is asked of
a download here it does not do: one commit for everything, resuming only into bytes that get verified, digests of Git
blobs too, bounded waiting. It is imported inside functions, once a hub is asked for; nothing here imports numpy.
"""

from hf2q.hub.reference import Reference, parse_reference

__all__ = ["Reference", "parse_reference"]
