"""Holding a model to a form: JSON by a schema, calls of tools, a grammar. `llguidance` does the parsing.

    problems     `SchemaError`: what a schema asks that cannot be enforced, and where
    patterns     regular expressions of schemas, in the form that llguidance takes them
    formats      what ``format`` stands for
    keywords     which words of JSON Schema are enforced, which say nothing about a value, which are refused
    words        what single words of a schema may say
    schema       `check_schema`: a schema checked, and written in the subset that is enforced word for word
    finite       whether a schema has any value of finite size
    parameters   whether a value is written as bare text or as JSON
    lark         quoting for llguidance's Lark syntax
    calls        what the syntaxes of calls have in common
    vocabulary   a model's tokens as llguidance wants them
    compiled     grammars compiled, once each, within limits
    guided       `Guided`: the `Constraint` over one compiled grammar
    answers      the grammar of a whole answer, reasoning first
    locate       where in a schema the reason for a refusal lies

Fails closed: what is not understood or not enforced is refused. Nothing here is imported before a request needs it.
"""
