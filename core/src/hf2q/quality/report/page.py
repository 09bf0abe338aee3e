"""The report as one HTML file: no scripts, nothing from elsewhere, and a policy that allows neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from hf2q.quality.report.charts import histogram, layers, scatter
from hf2q.quality.report.colours import ErrorClasses, rules, type_classes
from hf2q.quality.report.maps import error_legend, error_map, type_legend, type_map
from hf2q.quality.report.markup import Child, Markup, joined, table, tag
from hf2q.quality.report.measure import FileReport, Report
from hf2q.quality.report.numbers import bits, cosine, nats, percent, size
from hf2q.quality.report.provenance import provenance

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def html_page(report: Report) -> str:
    """The whole page."""
    tensors = [one for file in report.files for one in file.weights.tensors]
    classes = type_classes(one.qtype for one in tensors)
    errors = ErrorClasses(one.relative_error for one in tensors)
    style = files("hf2q.quality.report").joinpath("style.css").read_text(encoding="utf-8")
    title = title_of(report)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        # both are ours, and neither holds text of a file
        tag("style", Markup(f"\n{style}{rules(classes)}\n")),
    )
    body = tag(
        "body",
        tag(
            "header",
            tag("h1", title),
            tag("p", f"Measured against {report.reference.name} by hf2q {report.version}.", class_="soft"),
        ),
        tag(
            "main",
            _summary(report),
            [_file(file, number, report, classes, errors) for number, file in enumerate(report.files, 1)],
            provenance(report),
        ),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def title_of(report: Report) -> str:
    """What the report is called."""
    names = [file.label for file in report.files]
    return f"What {names[0]} costs" if len(names) == 1 else f"What {len(names)} files cost"


def _summary(report: Report) -> Markup:
    found = list(enumerate(report.files, 1))
    header = ["", "file", "size", "bits per weight", "relative error", "mean cosine", "smallest cosine"]
    return tag(
        "section",
        tag("h2", "Summary"),
        table("Sizes, and errors of weights", header, [_weights(*one) for one in found], numbers=range(2, len(header))),
        _predicted(report),
        _how(report),
        _comparison(report),
    )


def _named(number: int, file: FileReport) -> list[Child]:
    return [str(number), tag("a", file.label, href=f"#file-{number}")]


def _weights(number: int, file: FileReport) -> list[Child]:
    total, facts = file.weights.total, file.facts
    row = [size(facts.size), bits(facts.bits_per_weight), percent(total.relative_error)]
    return [*_named(number, file), *row, cosine(total.mean), cosine(total.minimum)]


def _predicted(report: Report) -> Markup | None:
    header = ["", "file", "mean KL", "median", "99 %", "maximum", "same top token", "perplexity", "over reference"]
    rows: list[list[Child]] = []
    for number, file in enumerate(report.files, 1):
        if file.predictions is None:
            return None
        found = file.predictions.summary
        row = [nats(value) for value in (found.mean, found.median, found.p99, found.maximum)]
        row += [percent(found.same_top, 2), f"{found.candidate_perplexity:.4f}", f"{found.ratio:.4f}"]
        rows.append([*_named(number, file), *row])
    return table("Predictions; KL in nats", header, rows, numbers=range(2, len(header)))


def _how(report: Report) -> Markup:
    measured = report.measured
    weights = tag(
        "p",
        "The weights of each file were decoded and compared with the reference's: the cosine is 1, and the relative "
        "error 0, where nothing was lost. The relative error of a tensor is the root mean square of its differences "
        "over that of the reference; that of several is the root mean square of theirs, by number of weights.",
        class_="soft",
    )
    if measured is None:
        return joined(weights, tag("p", "Predictions were not measured: no text was given.", class_="soft"))
    corpus = (
        f"Predictions were compared over {measured.corpus}: {measured.tokens:,} tokens in {measured.windows} windows "
        f"of {measured.n_ctx}, method {measured.method}. KL is the Kullback-Leibler divergence of the file's "
        f"predictions from the reference's, in nats: 0 where both predict the same. The perplexity of the reference "
        f"is {measured.reference_perplexity:.4f}."
    )
    return joined(weights, tag("p", corpus, class_="soft"))


def _comparison(report: Report) -> Markup | None:
    if len(report.files) < 2:
        return None
    sizes = [float(file.facts.size) for file in report.files]
    divergences = [file.predictions.summary.mean for file in report.files if file.predictions is not None]
    if divergences:
        label = "Mean KL divergence of each file, by its size"
        points = list(zip(sizes, divergences, strict=True))
        drawing = scatter(points, y_title="mean KL, nats", told="{:g}".format, label=label)
    else:
        label = "Relative error of each file's weights, by its size"
        points = [(at, file.weights.total.relative_error) for at, file in zip(sizes, report.files, strict=True)]
        drawing = scatter(points, y_title="relative error", told="{:.3%}".format, label=label)
    return joined(tag("h3", "Size and loss"), tag("p", f"{label}; numbers as in the table.", class_="soft"), drawing)


def _file(file: FileReport, number: int, report: Report, classes: Mapping[str, str], errors: ErrorClasses) -> Markup:
    tensors = file.weights.tensors
    used = {one.qtype for one in tensors}
    totals = [(total.qtype, total.tensors, total.nbytes) for total in file.facts.types if total.qtype in used]
    own = {qtype: class_ for qtype, class_ in classes.items() if qtype in used}
    return tag(
        "section",
        tag("h2", f"{number}. {file.label}"),
        _predictions(file),
        tag(
            "div",
            tag("div", tag("h3", "Types"), type_legend(totals, own), type_map(tensors, own)),
            tag("div", tag("h3", "Errors of weights"), error_legend(errors), error_map(tensors, errors)),
            class_="pair",
        ),
        tag("h3", "Layers"),
        layers(file.weights.layers, tensors, own, label="Size by type, and relative error, of each layer"),
        tag("details", tag("summary", "All layers"), _layer_table(file)),
        tag("details", tag("summary", f"All {len(tensors)} tensors"), _tensor_table(file)),
        id=f"file-{number}",
    )


def _predictions(file: FileReport) -> Markup | None:
    if file.predictions is None:
        return None
    found = file.predictions
    marks = {"median": found.summary.median, "mean": found.summary.mean, "99 %": found.summary.p99}
    rows = [[_share(share), nats(level)] for share, level in found.quantiles]
    return joined(
        tag("h3", "Predictions"),
        histogram(found.histogram, marks, label="Tokens by the divergence of their prediction"),
        tag("p", "The first bar holds all that is smaller, too.", class_="soft")
        if found.histogram[0][0] < 2e-9
        else None,
        tag(
            "details",
            tag("summary", "Quantiles of the divergence"),
            table("KL in nats that a share of tokens does not exceed", ["tokens", "KL"], rows, numbers=[1]),
        ),
        tag("p", f"Computed with the backend {found.backend}.", class_="soft"),
    )


def _share(share: float) -> str:
    return {0.0: "smallest", 0.5: "50 % (median)", 1.0: "largest"}.get(share, f"{100 * share:g} %")


def _layer_table(file: FileReport) -> Markup:
    rows: Iterator[Sequence[Child]] = (
        [
            layer.layer or "outside",
            str(layer.tensors),
            size(layer.nbytes),
            bits(8 * layer.nbytes / layer.elements if layer.elements else None),
            percent(layer.relative_error),
            cosine(layer.mean),
            cosine(layer.minimum),
            layer.worst,
        ]
        for layer in file.weights.layers
    )
    header = ["layer", "tensors", "size", "bits per weight", "relative error", "mean cosine", "smallest", "of"]
    return table("Layers", header, rows, numbers=range(1, 7))


def _tensor_table(file: FileReport) -> Markup:
    rows: Iterator[Sequence[Child]] = (
        [
            one.name,
            " × ".join(map(str, one.shape)),
            one.qtype,
            size(one.nbytes),
            cosine(one.cosine),
            percent(one.relative_error),
            f"{one.max_error:.4g}",
        ]
        for one in file.weights.tensors
    )
    header = ["tensor", "shape", "type", "size", "cosine", "relative error", "largest error"]
    return table("Tensors", header, rows, numbers=range(3, 7))
