"""The OpenAPI document: every route, every field, and nothing that points elsewhere."""

import json
import re

import pytest

from hf2q.serve.api import chat_request, completions_request, embeddings, tokens
from hf2q.serve.api.app import ROUTES


@pytest.fixture(scope="module")
def document(site):
    status, headers, body = site.json("GET", "/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    return body


def test_every_route_is_in_it(document):
    assert document["openapi"].startswith("3.1")
    for route in ROUTES:
        for path in route.paths:
            plain = re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", path)
            for method in route.http_methods:
                operation = document["paths"][plain][method.lower()]
                assert operation["summary"]
                assert ("{" in plain) == ("parameters" in operation)
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat_request.Body),
        ("/v1/completions", completions_request.Body),
        ("/v1/embeddings", embeddings.Body),
        ("/tokenize", tokens.TokenizeBody),
        ("/detokenize", tokens.DetokenizeBody),
        ("/apply-template", tokens.TemplateBody),
    ],
)
def test_every_field_is_in_it(document, path, body):
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    found = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    assert set(found["properties"]) == set(body.__struct_fields__)


def test_references_lead_somewhere_in_it(document):
    text = json.dumps(document)
    references = set(re.findall(r'"\$ref": "([^"]*)"', text))
    assert references
    for reference in references:
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    assert "http://" not in text
    assert "https://" not in text


def test_streams_are_told(document):
    content = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
