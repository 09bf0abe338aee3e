"""Checkpoints' tokenizers that are no byte-level BPE, to be changed and then written and read."""

import copy
import hashlib
import json
from pathlib import Path

from hf2q.formats.tokenizer import load_tokenizer, read_tokenizer
from hf2q.types import PreTokenizer

DATA = Path(__file__).parent / "data"
GEMMA4 = PreTokenizer(name="gemma4", model="gemma4", normalizer="Replace")
BERT = PreTokenizer(name="bert-bge", model="bert", normalizer="BertNormalizer")
PLAIN = PreTokenizer(name="plain", split=("x",))
RECORDS = (PLAIN, GEMMA4, BERT)
PREFIX = "tokenizer.ggml."
NAMES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")


def original(name):
    return {file: json.loads((DATA / name / file).read_text("utf-8")) for file in NAMES}


def as_golden(field):
    types = [field.type.name] if field.element is None else [field.type.name, field.element.name]
    value = list(field.value) if isinstance(field.value, tuple) else field.value
    if isinstance(value, list) and len(value) > 64:
        text = json.dumps(value, ensure_ascii=False)
        value = {"len": len(value), "sha256": hashlib.sha256(text.encode()).hexdigest()[:32]}
    return [field.key, [types, value]]


class Changed:
    """The files of `data/NAME` by name, to be changed before they are read; a file set to None is left out."""

    def __init__(self, name, folder):
        self.folder = folder
        self.files = copy.deepcopy(original(name))
        self.tokenizer, self.settings, self.special_map, self.config = (self.files[file] for file in NAMES)

    @property
    def vocab(self):
        return self.tokenizer["model"]["vocab"]

    def add(self, content, **flags):
        """Add a token beyond the vocabulary, with a row in the embedding. Returns its id."""
        listed = self.tokenizer["added_tokens"]
        number = len(self.vocab) + sum(entry["id"] >= len(self.vocab) for entry in listed)
        entry = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        entry |= {"content": content, **flags}
        listed.append({"id": number, **entry})
        self.settings.get("added_tokens_decoder", {})[str(number)] = entry
        text = self.config.get("text_config", self.config)
        text["vocab_size"] = max(text["vocab_size"], number + 1)
        return number

    def read(self, *, vocab_size=None, known=RECORDS, pre=None):
        for name, table in self.files.items():
            if table is not None:
                (self.folder / name).write_text(json.dumps(table, ensure_ascii=False), "utf-8")
        size = self.config.get("text_config", self.config)["vocab_size"] if vocab_size is None else vocab_size
        return read_tokenizer(self.folder, size, self.config, known, pre)

    def values(self, **arguments):
        return {field.key.removeprefix(PREFIX): field.value for field in self.read(**arguments)}

    def tokens(self, **arguments):
        """(text, type) by id."""
        values = self.values(**arguments)
        return list(zip(values["tokens"], values["token_type"], strict=True))

    def load(self, **arguments):
        return load_tokenizer({field.key: field.value for field in self.read(**arguments)}, ())

    def library(self):
        """The same tokenizer.json, run by the `tokenizers` library."""
        import tokenizers

        return tokenizers.Tokenizer.from_str(json.dumps(self.tokenizer, ensure_ascii=False))


def metadata(name):
    """The metadata of `data/NAME` by key."""
    config = original(name)["config.json"]
    size = config.get("text_config", config)["vocab_size"]
    return {field.key: field.value for field in read_tokenizer(DATA / name, size, config, RECORDS)}


def streamed(tokenizer, ids, **arguments):
    stream = tokenizer.stream(**arguments)
    return "".join([*(stream.push(token) for token in ids), stream.flush()])
