"""A checkpoint's tokenizer files to change, for the tests of reading them."""

import copy
import json
from pathlib import Path

import pytest

from hf2q.formats.tokenizer import read_tokenizer
from hf2q.types import PreTokenizer

FOLDER = Path(__file__).parents[3] / "tests" / "data" / "qwen3_5"
NAMES = ("tokenizer.json", "config.json", "tokenizer_config.json")
SOURCES = {name: json.loads((FOLDER / name).read_text("utf-8")) for name in NAMES}
KNOWN = PreTokenizer(
    name="qwen35",
    split=(SOURCES["tokenizer.json"]["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],),
    normalizer="NFC",
)


class Checkpoint:
    """The fixture's tokenizer files, to be changed and then written and read."""

    def __init__(self, folder):
        self.folder = folder
        self.tokenizer, self.config, self.settings = (copy.deepcopy(SOURCES[name]) for name in NAMES)
        self.more = {"chat_template.jinja": "JINJA"}

    def add(self, content, **flags):
        number = len(self.tokenizer["model"]["vocab"]) + len(self.tokenizer["added_tokens"])
        entry = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        entry |= {"content": content, **flags}
        self.tokenizer["added_tokens"].append({"id": number, **entry})
        self.settings["added_tokens_decoder"][str(number)] = entry
        return number

    def read(self, vocab_size=2048, pre=None):
        for name, text in self.more.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_bytes(text.encode())
        for name, table in (("tokenizer.json", self.tokenizer), ("tokenizer_config.json", self.settings)):
            if table is not None:
                (self.folder / name).write_text(json.dumps(table), "utf-8")
        return read_tokenizer(self.folder, vocab_size, self.config, [KNOWN], pre)

    def values(self, **arguments):
        return {field.key: field.value for field in self.read(**arguments)}

    def tokens(self, **arguments):
        """(text, type) by id."""
        values = self.values(**arguments)
        return list(zip(values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"], strict=True))


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path)
