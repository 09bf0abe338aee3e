"""``hf2q generate``, over a model that says what its script wants."""

import json

import pytest

import hf2q.serve.load
from hf2q.cli import main
from hf2q.errors import LoadError
from hf2q.serve.model import Model
from hf2q.testing.scripted import scripted_model


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command over a scripted model; gives exit code, stdout, stderr, and keeps the requests."""
    asked = []
    generate = Model.generate

    def spy(self, prompt, **more):
        asked.append((prompt, more))
        return generate(self, prompt, **more)

    monkeypatch.setattr(Model, "generate", spy)

    def call(*words, model=None, **options):
        made = model or scripted_model(**({"reply": lambda conversation: conversation[-9:]} | options))
        monkeypatch.setattr(hf2q.serve.load, "load", lambda path, **options: made)
        code = main(["generate", "--model", "m.gguf", *words])
        out, err = capsys.readouterr()
        return code, out, err

    call.asked = asked
    return call


def counting(ids):
    """Says ABCDEF… after anything."""
    return 65 if ids[-1] >= 256 or not 65 <= ids[-1] < 90 else ids[-1] + 1


def test_text_streams_and_a_line_about_speed_follows(run):
    code, out, err = run("--prompt", "xA", "--max-tokens", "3", script=counting)
    assert (code, out) == (0, "BCD\n")
    (line,) = err.splitlines()
    assert line.startswith("prompt: 2 tokens, ")
    assert "generated: 3 tokens, " in line
    assert line.endswith("ended by: length")


def test_json(run):
    code, out, err = run("--prompt", "xA", "--max-tokens", "3", "--json", script=counting)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["text"], found["ids"], found["finish_reason"]) == ("BCD", [66, 67, 68], "length")
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert set(found["timings"]) == {
        "prefill_seconds",
        "prefill_tokens_per_second",
        "decode_seconds",
        "decode_tokens_per_second",
    }


def test_json_with_log_probabilities(run):
    code, out, err = run("--prompt", "xA", "--max-tokens", "2", "--logprobs", "2", "--json", script=counting)
    assert (code, err) == (0, "")
    first, second = json.loads(out)["logprobs"]
    assert (first["id"], first["text"], second["id"], second["text"]) == (66, "B", 67, "C")
    assert first["top"][0] == {key: first[key] for key in ("id", "text", "logprob")}
    assert len(first["top"]) == 2
    assert first["top"][1]["logprob"] < first["logprob"] <= 0
    assert "logprobs" not in json.loads(run("--prompt", "xA", "--json", script=counting)[1])
    (none,) = json.loads(run("--prompt", "x", "--max-tokens", "1", "--logprobs", "0", "--json", script=counting)[1])[
        "logprobs"
    ]
    assert none["top"] == []


@pytest.mark.parametrize(
    "words", [("--logprobs", "2"), ("--logprobs", "21", "--json"), ("--logprobs", "1.5", "--json")]
)
def test_log_probabilities_that_cannot_be_told(run, words):
    code, out, err = run("--prompt", "xA", *words)
    assert (code, out) == (3, "")
    assert "logprobs" in err
    assert not run.asked


def test_no_second_line_end_after_an_answer_that_has_one(run):
    assert run("--prompt", "x", "--chat", reply="a\n")[1] == "a\n"
    assert run("--prompt", "x", "--chat", reply="")[1] == "\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LoadError("device lost")])
def test_what_ends_an_answer_early_is_said_on_a_line_of_its_own(run, error):
    def script(ids):
        if len(ids) == 3:
            raise error
        return 66

    code, out, err = run("--prompt", "A", script=script)
    assert out == "BB\n"
    assert (code, err) in ((130, "interrupted\n"), (1, "error: device lost\n"))


def test_an_error_before_any_text_prints_no_text(run):
    def script(ids):
        raise LoadError("device lost")

    assert run("--prompt", "A", script=script)[:2] == (1, "")


def test_defaults(run):
    run("--prompt", "x", script=counting, context_length=300)
    ((_, more),) = run.asked
    sampling = more["sampling"]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 40, 0.95, 0.05)
    assert (sampling.seed, more["max_tokens"], more["stop"], more["ignore_eos"]) == (None, 256, (), False)


def test_every_option_arrives(run):
    words = "--temperature 0.5 --top-k 5 --top-p 0.5 --min-p 0.25 --seed 7 --stop zz --stop yy --ignore-eos"
    run("--prompt", "x", "--max-tokens", "2", *words.split(), script=counting)
    ((_, more),) = run.asked
    sampling = more["sampling"]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 5, 0.5, 0.25)
    assert (sampling.seed, more["stop"], more["ignore_eos"]) == (7, ("zz", "yy"), True)


def test_penalties_and_biases_arrive(run):
    words = "--typical-p 0.5 --repetition-penalty 1.5 --frequency-penalty -0.5 --presence-penalty 0.25"
    run("--prompt", "x", "--max-tokens", "2", *words.split(), "--logit-bias", "7=-5", "--logit-bias", "9=2.5")
    sampling = run.asked[0][1]["sampling"]
    assert (sampling.typical_p, sampling.repetition_penalty) == (0.5, 1.5)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (-0.5, 0.25)
    assert sampling.logit_bias == {7: -5.0, 9: 2.5}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--logit-bias", "7"], "not of the form TOKEN=NUMBER"),
        (["--logit-bias", "a=1"], "not of the form TOKEN=NUMBER"),
        (["--logit-bias", "7=1", "--logit-bias", "7=2"], "names token 7 twice"),
        (["--logit-bias", "7=500"], "logit_bias of token 7 is 500.0"),
        (["--logit-bias", "999999=1"], "the vocabulary has"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0"),
        (["--raw", "--system", "s"], "are for --chat"),
        (["--speculative"], "loaded without its draft head"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(run, words, told):
    code, out, err = run("--prompt", "x", *words, script=counting)
    assert (code, out) == (3, "")
    assert told in err


def test_raw_is_the_opposite_of_chat(run):
    run("--prompt", "hello", "--raw", "--max-tokens", "1", script=counting)
    assert run.asked[0][0] == "hello"


def test_stop(run):
    code, out, err = run("--prompt", "A", "--stop", "EF", script=counting)
    assert (code, out) == (0, "BCD\n")
    assert err.rstrip().endswith("ended by: stop")


def test_chat(run):
    code, out, _ = run("--prompt", "hello", "--system", "be kind", "--chat", reply=lambda c: f"<{c.count('be kind')}>")
    assert (code, out) == (0, "<1>\n")
    ((ids, _),) = run.asked
    text = scripted_model().tokenizer.decode(ids)
    assert text == ("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


def test_without_chat_the_prompt_is_continued_as_it_is(run):
    run("--prompt", "hello", "--max-tokens", "1", script=counting)
    assert run.asked[0][0] == "hello"


def test_template_from_a_file(run, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("[{{ messages[0].content }}]", encoding="utf-8")
    code, _, _ = run(
        "--prompt", "hé", "--chat", "--chat-template-file", str(path), "--max-tokens", "1", script=counting
    )
    assert code == 0
    assert run.asked[0][0] == list("[hé]".encode())


def test_texts_may_begin_with_a_hyphen(run):
    run("--prompt", "- one", "--stop", "-D", "--max-tokens", "9", script=counting)
    ((text, more),) = run.asked
    assert (text, more["stop"]) == ("- one", ("-D",))


def test_prompt_file(run, tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("zwölf\n", encoding="utf-8")
    assert run("--prompt-file", str(path), "--max-tokens", "1", script=counting)[0] == 0
    assert run.asked[0][0] == "zwölf\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 3, "either --prompt or --prompt-file"),
        (("--prompt", "a", "--prompt-file", "b"), 3, "either --prompt or --prompt-file"),
        (("--prompt", "a", "--system", "b"), 3, "for --chat"),
        (("--prompt", "a", "--chat-template-file", "b"), 3, "for --chat"),
        (("--prompt-file", "nowhere.txt"), 3, "there is no file nowhere.txt"),
        (("--prompt", "a", "--chat", "--chat-template-file", "nowhere.txt"), 3, "there is no file nowhere.txt"),
        (("--prompt", "a", "--max-tokens", "0"), 3, "--max-tokens"),
        (("--prompt", "a", "--temperature", "-1"), 3, "--temperature"),
        (("--prompt", "a", "--temperature", "nan"), 3, "temperature"),
        (("--prompt", "a", "--top-p", "2"), 3, "--top-p"),
        (("--prompt", "a", "--stop", ""), 3, "stop"),
        (("--prompt", ""), 3, "no tokens"),
        (("--prompt", "a" * 50), 3, "context of 20"),
        (("--prompt", "a", "--temprature", "1"), 3, "temprature"),
    ],
)
def test_what_it_refuses(run, words, code, message):
    found, out, err = run(*words, script=counting, context_length=20)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_chat_without_a_template(run):
    code, out, err = run("--prompt", "a", "--chat", model=scripted_model("x", chat_template=None))
    assert (code, out) == (3, "")
    assert "no chat template" in err
    assert "hint: give one with --chat-template-file" in err


def test_prompt_file_that_is_not_text(run, tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xff\xfe")
    code, _, err = run("--prompt-file", str(path))
    assert code == 3
    assert "not UTF-8" in err


def test_model_that_cannot_be_loaded(monkeypatch, capsys):
    def broken(path, **options):
        raise LoadError("the file is broken", hint="make a new one")

    monkeypatch.setattr(hf2q.serve.load, "load", broken)
    assert main(["generate", "--model", "m.gguf", "--prompt", "x", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["error"]["message"] == "the file is broken"


@pytest.mark.parametrize("words", [["--max-tokens", "1.5"], ["--top-k", "0x10"], ["--seed", "1e3"]])
def test_integers_are_taken_as_written(words, capsys):
    """The parser's own reading would round, or take another base."""
    assert main(["generate", "--model", "absent.gguf", "--prompt", "x", *words]) == 3
    assert "whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image", "a.png"], "--image needs the model's projector"),
        (["--mmproj", "p.gguf"], "--mmproj is for --image"),
        (["--image", "a.png", "--mmproj", "p.gguf", "--mmproj", "q.gguf"], "--mmproj was given 2 times"),
    ],
)
def test_pictures_and_their_projector_go_together(run, words, said):
    code, out, err = run("--prompt", "x", *words)
    assert (code, out) == (3, "")
    assert said in err


class Eyes:
    """A stand-in for `hf2q.serve.vision.Vision` that sees nothing; what is asked of it is kept."""

    placeholder, token = "<|im_end|>", 263

    def __init__(self):
        self.asked = []

    def place(self, ids, images):
        self.asked.append((ids, images))
        return tuple(ids), ()


def test_a_picture_is_asked_about_in_chat_form(run):
    model = scripted_model("yes")
    model.vision = Eyes()
    code, out, _ = run("--prompt", "What?", "--image", "a.png", "--image", "b.png", "--mmproj", "p.gguf", model=model)
    assert (code, out) == (0, "yes\n")
    ((ids, images),) = model.vision.asked
    assert [path.name for path in images] == ["a.png", "b.png"]
    assert "What?" in model.tokenizer.decode(ids)
    assert model.tokenizer.decode(ids).startswith("<|im_start|>")


def test_a_prompt_that_says_where_pictures_go_is_taken_as_it_is(run):
    model = scripted_model(script=counting)
    model.vision = Eyes()
    words = ["--prompt", "x<|im_end|>A", "--image", "a.png", "--mmproj", "p.gguf", "--max-tokens", "2"]
    assert run(*words, model=model)[1] == "BC\n"
    assert model.tokenizer.decode(model.vision.asked[0][0]) == "x<|im_end|>A"
    code, _, err = run(*words, "--system", "s", model=model)
    assert code == 3
    assert "need --chat" in err
