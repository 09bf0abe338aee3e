"""How a graph computes: the op vocabulary (`ops`), its implementations, and the choice among them (`select`).

Layers, top down: `graph` (what a forward graph is), `weights` (GGUF tensors as a backend holds them), `cache` (what a
sequence remembers), `ops` (the vocabulary). Implementations: `mlx`, and `reference`, the plain numpy one that tests
compare with. Importing this package imports neither numpy nor MLX.
"""
