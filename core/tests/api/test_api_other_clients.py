"""Clients of others over OpenAI's wire, where they are installed: LangChain and litellm."""

import json

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of their own making


@pytest.fixture(autouse=True)
def at_home(monkeypatch):
    """Neither of them asks anything else than this server."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Tokyo"}}\n</tool_call>'


class TestLangChain:
    @pytest.fixture
    def chat(self, caller):
        found = pytest.importorskip("langchain_openai")
        return found.ChatOpenAI(
            model="scripted", base_url=f"{caller.base}/v1", api_key="none", temperature=0, max_retries=0
        )

    def test_chat(self, chat):
        answer = chat.invoke([("system", "be brief"), ("user", "Tōkyō")])
        assert answer.content == "Tōkyō"
        assert answer.usage_metadata["output_tokens"] == len("Tōkyō".encode()) + 1

    def test_stream(self, chat):
        pieces = list(chat.stream("Tōkyō 東京"))
        assert "".join(piece.content for piece in pieces) == "Tōkyō 東京"

    def test_tools(self, chat):
        bound = chat.bind_tools([TOOL])
        answer = bound.invoke(CALL)
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"place": "Tokyo"})
        whole = None
        for piece in bound.stream(CALL):
            whole = piece if whole is None else whole + piece
        assert [(one["name"], one["args"]) for one in whole.tool_calls] == [("weather", {"place": "Tokyo"})]
        messages = pytest.importorskip("langchain_core.messages")
        history = [
            messages.HumanMessage("look"),
            answer,
            messages.ToolMessage("sunny", tool_call_id=call["id"]),
            messages.HumanMessage("so?"),
        ]
        assert bound.invoke(history).content == "so?"

    @pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
    def test_structured_output(self, chat, method):
        schema = {
            "title": "weather",
            "description": "The weather of a place.",
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
            "additionalProperties": False,
        }
        said = CALL if method == "function_calling" else '{"place": "Tokyo"}'
        assert chat.with_structured_output(schema, method=method).invoke(said) == {"place": "Tokyo"}

    def test_logprobs(self, chat):
        found = chat.bind(logprobs=True, top_logprobs=2).invoke("ab").response_metadata["logprobs"]["content"]
        assert [one["token"] for one in found] == ["a", "b"]

    def test_embeddings(self, running):
        found = pytest.importorskip("langchain_openai")
        from test_api_embeddings import MODEL, embedding_model, wanted

        with running(beside=[embedding_model()]) as site:
            client = found.OpenAIEmbeddings(
                model=MODEL, base_url=f"{site.base}/v1", api_key="none", check_embedding_ctx_length=False
            )
            vectors = client.embed_documents(["abc", "de"])
        assert vectors == [pytest.approx(wanted("abc"), rel=1e-6), pytest.approx(wanted("de"), rel=1e-6)]


class TestLitellm:
    @pytest.fixture
    def asked(self, caller):
        pytest.importorskip("litellm")
        return {"model": "openai/scripted", "api_base": f"{caller.base}/v1", "api_key": "none", "temperature": 0}

    @pytest.fixture
    def litellm(self):
        return pytest.importorskip("litellm")

    def test_chat(self, litellm, asked):
        answer = litellm.completion(messages=[{"role": "user", "content": "Tōkyō"}], **asked)
        assert answer.choices[0].message.content == "Tōkyō"
        assert answer.usage.completion_tokens == len("Tōkyō".encode()) + 1

    def test_stream(self, litellm, asked):
        chunks = list(litellm.completion(messages=[{"role": "user", "content": "Tōkyō"}], stream=True, **asked))
        whole = litellm.stream_chunk_builder(chunks)
        assert whole.choices[0].message.content == "Tōkyō"
        assert whole.choices[0].finish_reason == "stop"

    def test_tools(self, litellm, asked):
        messages = [{"role": "user", "content": CALL}]
        answer = litellm.completion(messages=messages, tools=[TOOL], **asked).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert json.loads(answer.message.tool_calls[0].function.arguments) == {"place": "Tokyo"}
        chunks = list(litellm.completion(messages=messages, tools=[TOOL], stream=True, **asked))
        (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"place": "Tokyo"})

    def test_errors(self, litellm, asked):
        with pytest.raises(litellm.BadRequestError):
            litellm.completion(messages=[{"role": "user", "content": "x"}], max_tokens=-1, **asked)

    def test_text_completion(self, litellm, asked):
        found = litellm.text_completion(prompt="abc", **{**asked, "model": "text-completion-openai/scripted"})
        assert found.choices[0].finish_reason in ("stop", "length")
