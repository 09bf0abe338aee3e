"""The HTTP server: OpenAI's wire format over the engine and chat. The only room that knows HTTP.

The life of a server
    supervisor         a parent that starts it again;  listening  the socket
    server             loads, listens, stops in good order;  connection  limits of one connection
    service            what routes stand on: models by name, readiness;  watching  who hears what engines do
    pool               which models are in memory;  lease  the hold of a request on one
    registered         the files that may be served;  opening  from a file to what answers

Around the router
    app                all of it together;  request_id  x-request-id;  accounts  lines of the log;  counting  metrics
    hosts, cors, auth  names of the server, other origins, API keys (keys);  head  HEAD;  trickle  slow bodies
    errors             exceptions to status and body;  wire  refusing outside the router;  settings  limits

Routes
    chat_completions, completions, responses, embeddings, tokens   OpenAI's, each with modules of its name
    control, status, metrics, openapi, page                        operating, watching, describing the server
    body, fields, asked, images, remote                            what is sent, read and checked
    choices, answer, merged, logprobs, usage, schema, sse          what is answered
    disconnect, compute                                            work that ends when the client goes

Arrows point down.
"""
