"""From a loaded model to its `Chat`: the template from its file, or one given instead, with the model's own tokens."""

from __future__ import annotations

from pathlib import Path

from hf2q.errors import ConfigError, MissingFileError
from hf2q.serve.chat.conversation import Chat
from hf2q.serve.chat.template import ChatTemplate
from hf2q.serve.model import Model


def open_chat(model: Model, template_file: Path | None = None) -> Chat:
    """The chat of `model`. Without any template it exists, and refuses messages.

    Errors: LoadError for a template that cannot be used; MissingFileError, ConfigError for a file that cannot be read.
    """
    source = model.chat_template if template_file is None else _read(template_file)
    template = None if source is None else ChatTemplate(source, tokens=_tokens(model))
    return Chat(template, model.chat_format, tokenizer=model.tokenizer, end_ids=model.end_ids, n_vocab=model.n_vocab)


def _tokens(model: Model) -> dict[str, str]:
    """Texts of special tokens under the names that transformers gives templates."""
    tokenizer = model.tokenizer
    named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
    return {name: tokenizer.decode([token]) for name, token in named.items() if token is not None}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {path}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
