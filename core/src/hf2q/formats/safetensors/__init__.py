"""Local safetensors checkpoints, read without trust. Bottom to top: header, shards, rows, checkpoint.

No numpy is imported before tensor data is asked for.
"""

from hf2q.formats.safetensors.checkpoint import Checkpoint, CheckpointFile, open_checkpoint

__all__ = ["Checkpoint", "CheckpointFile", "open_checkpoint"]
