"""A scripted model that calls tools: its template and its format."""

from hf2q.testing.scripted import REASONING
from hf2q.types import ChatFormat

TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
"""Hermes: tools in a system turn, calls as JSON."""
TOOL_FORMAT = ChatFormat(
    name="scripted",
    reasoning=REASONING,
    end_of_turn=("<|im_end|>",),
    tools="hf2q_arch_qwen3vl.calls:HermesCalls",
)


def with_tools(model):
    """Make a model that calls tools of it."""
    model.chat_format = TOOL_FORMAT
