"""From the messages of a dialogue to what a chat template is given, with what belongs together checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hf2q.errors import RequestError
from hf2q.serve.chat.messages import Message, ToolCall
from hf2q.serve.chat.query import Tool
from hf2q.serve.chat.template_probe import TemplateProbe

_NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}}


def tool_form(tool: Tool) -> dict[str, Any]:
    """A tool as templates take it: OpenAI's form, which transformers passes on as it is."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = dict(tool.parameters or _NOTHING)
    return {"type": "function", "function": function}


def turns(messages: Sequence[Message], takes: TemplateProbe) -> list[dict[str, Any]]:
    """The dialogue in the form that the template takes.

    A system message that is not the first stays where it is if the template shows it there. Else those at the beginning
    become one, and a later one becomes the beginning of the user's message behind it, or a user's message where there
    is none: agents send them, and what they say must not be lost.

    Errors: RequestError naming the message: a call whose arguments are no JSON object, a result of no call, calls or
    results where they cannot be, calls that the template does not show.
    """
    checked = _checked(messages, takes)
    if any(message.role == "system" for message in checked[1:]) and not takes.system_anywhere:
        checked = _folded(checked)
    return [_form(message, takes) for message in checked]


def _checked(messages: Sequence[Message], takes: TemplateProbe) -> list[Message]:
    """The messages with ``developer`` as ``system``, and results of calls with the names of the functions."""
    names: dict[str, str] = {}
    found = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        role, name = "system" if message.role == "developer" else message.role, message.name
        if message.tool_calls:
            if role != "assistant":
                raise _refusal(
                    f"{place}.tool_calls", f"are for messages of the assistant, not of the role {role!r:.40}"
                )
            if takes.arguments == "nothing":
                raise _refusal(f"{place}.tool_calls", "are given, but the model's chat template does not show them")
            for at, call in enumerate(message.tool_calls):
                path = f"{place}.tool_calls[{at}]"
                if not call.id or not call.name:
                    word = "id" if not call.id else "function.name"
                    raise _refusal(f"{path}.{word}", "is empty, expected a text")
                arguments(call.arguments, f"{path}.function.arguments")
                names[call.id] = call.name
        if role == "tool":
            name = _answered(message, names, place)
        else:
            if message.tool_call_id is not None:
                raise _refusal(f"{place}.tool_call_id", f"is for messages of the role 'tool', not {role!r:.40}")
            if name and not takes.names:
                raise _refusal(f"{place}.name", "is set, but the model's chat template does not show names")
        found.append(_changed(message, role=role, name=name))
    return found


def _answered(message: Message, names: Mapping[str, str], place: str) -> str:
    """The name of the function whose result a message is."""
    call = message.tool_call_id
    if not call:
        raise _refusal(f"{place}.tool_call_id", "is missing, expected the id of the call that this is the result of")
    if call not in names:
        raise _refusal(
            f"{place}.tool_call_id", f"is {call!r:.80}, which is the id of no call in the assistant's messages before"
        )
    if message.name and message.name != names[call]:
        raise _refusal(f"{place}.name", f"is {message.name!r:.80}, but the call was of {names[call]!r:.80}")
    return names[call]


def arguments(text: str, path: str) -> dict[str, Any]:
    """The arguments of an earlier call. Errors: RequestError naming `path` for what is no text of a JSON object."""
    try:
        found = json.loads(text)
        # neither numbers that JSON has not, nor halves of characters
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError, TypeError) as error:
        raise _refusal(
            path, f"is no JSON: {error}", hint='arguments are the text of a JSON object, such as "{}"'
        ) from error
    if not isinstance(found, dict):
        raise _refusal(path, f"is {text!r:.60}, expected the text of a JSON object")
    return found


def _folded(messages: Sequence[Message]) -> list[Message]:
    """The messages with no system message but the first."""
    first = 0
    while first < len(messages) and messages[first].role == "system":
        first += 1
    found: list[Message] = []
    if first:
        found.append(_changed(messages[0], content=_texts(messages[:first])))
    waiting: list[Message] = []
    for message in messages[first:]:
        if message.role == "system":
            waiting.append(message)
            continue
        if waiting and message.role == "user" and not message.images:
            message = _changed(message, content=_texts([*waiting, message]))
        elif waiting:
            found.append(_changed(waiting[0], role="user", content=_texts(waiting)))
        waiting = []
        found.append(message)
    if waiting:
        found.append(_changed(waiting[0], role="user", content=_texts(waiting)))
    return found


def _texts(messages: Sequence[Message]) -> str:
    """The texts of several messages as one."""
    joined = ("\n".join([m.content] if isinstance(m.content, str) else m.content) for m in messages)
    return "\n\n".join(joined)


def _form(message: Message, takes: TemplateProbe) -> dict[str, Any]:
    """The message as the template takes it."""
    content: Any = message.content
    if message.images:
        content = _with_images(message)
    elif isinstance(content, str):
        if not takes.text:
            content = [{"type": "text", "text": content}]
    elif takes.parts:
        content = [{"type": "text", "text": text} for text in content]
    else:
        content = "\n".join(content)  # as llama.cpp and vLLM join them
    form: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning is not None:
        form["reasoning_content"] = message.reasoning
    if message.tool_calls:
        form["tool_calls"] = [_call_form(call, takes) for call in message.tool_calls]
    if message.tool_call_id is not None:
        form["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        form["name"] = message.name
    return form


def _with_images(message: Message) -> list[dict[str, Any]]:
    """Texts and images in their order."""
    texts = (message.content,) if isinstance(message.content, str) else message.content
    places = message.image_places or (0,) * message.images
    parts: list[dict[str, Any]] = []
    for at in range(len(texts) + 1):
        parts += [{"type": "image"}] * places.count(at)
        parts += [{"type": "text", "text": text} for text in texts[at : at + 1]]
    return parts


def _call_form(call: ToolCall, takes: TemplateProbe) -> dict[str, Any]:
    given: Any = call.arguments if takes.arguments == "text" else json.loads(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": given}}


def _changed(message: Message, **fields: Any) -> Message:
    return Message(**{name: fields.get(name, getattr(message, name)) for name in message.__struct_fields__})


def _refusal(param: str, why: str, *, hint: str | None = None) -> RequestError:
    return RequestError(f"{param} {why}", hint=hint, param=param)
