"""The contract suites over BERT and Nomic-BERT."""

from hf2q_arch_bert.hf2q_contract import (  # noqa: F401
    TestBertArch,
    TestBertEncoder,
    TestNomicArch,
    TestNomicEncoder,
)
