"""Running a model: from a GGUF file to streamed text. The room below HTTP; `serve/api` is the room above.

load         a file becomes a Model: checks, tokenizer, backend, graph
model        Model: logits, generate, embed
engine       takes requests from threads and asyncio; one worker, several at once
scheduler    whose turn it is;  memory_plan  who may grow;  reuse, prefix  what need not be computed;  worker  does it
observe      what watchers of an engine are told
generation   one request, step by step; what Model.generate and the engine share
embedding    texts to vectors;  pooling   the vectors of tokens to one
sequence     token ids in, logits out, with a cache
sampling     logits to a token id
text         token ids to text, with stop strings held back
vision       images to embeddings in the places of tokens
events       what all of these hand on
"""
