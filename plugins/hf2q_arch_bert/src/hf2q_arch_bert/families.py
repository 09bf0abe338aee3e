"""Names by which the family is known. Imports nothing, so that plugin discovery stays cheap.

Source: llama.cpp, conversion/bert.py, registrations of `BertModel` and `NomicBertModel`; transformers,
models/{bert,nomic_bert}/configuration_*.py.
"""

BERT, NOMIC = "bert", "nomic-bert"
BERT_CLASSES = ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")
NOMIC_CLASSES = ("NomicBertModel",)
BERT_MODEL_TYPES = ("bert",)
NOMIC_MODEL_TYPES = ("nomic_bert",)

PREFIXES = ("nomic_bert.", "bert.", "model.")
"""What stands before names of tensors in models with a head, by transformers' `base_model_prefix` or a wrapper's."""

ENCODER = "encoder"
"""Kind of every block."""

MODULES = "modules.json"
"""The side file of sentence-transformers, and the key under which `from_config` finds what it says."""

MEAN, CLS, LAST = 1, 2, 3
"""Values of ``pooling_type``. Source: llama.cpp, include/llama.h, `llama_pooling_type`."""
