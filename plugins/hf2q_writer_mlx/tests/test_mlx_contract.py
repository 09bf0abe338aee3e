"""The contract suite of the writer."""

from hf2q_writer_mlx.hf2q_contract import TestWriter

__all__ = ["TestWriter"]
