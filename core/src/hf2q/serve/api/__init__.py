"""The HTTP server: OpenAI's wire format over the engine and chat. The only room that knows HTTP.

    server             listens, loads the model, stops in good order
    app                routes
    chat_completions   POST /v1/chat/completions
    answer             one answer as it is generated
    service            the model behind the routes, and whether it is ready
    chat_request       a chat request, checked
    fields             what becomes of each field
    body               reading and decoding bodies
    schema             what is sent
    sse                event streams
    disconnect         work that ends when the client goes
    head               HEAD where GET is
    request_id         x-request-id
    errors             exceptions to status and body
    settings           limits

Arrows point down.
"""
