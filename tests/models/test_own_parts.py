"""Parts of the user's own that do not work: one line that names key, class, file and line, before a run begins."""

import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

import attnkit
from attnkit.config.load import load
from attnkit.config.runs import PretrainRun
from attnkit.data.objectives import objectives
from attnkit.data.packing import packings
from attnkit.data.readers import readers
from attnkit.errors import UsageError
from attnkit.files.imports import absolute, import_part
from attnkit.registry import Registry
from attnkit.tasks.base import tasks
from attnkit.tasks.metrics import metrics

FAMILIES = {
    "scorer": attnkit.scorers,
    "normalizer": attnkit.normalizers,
    "pattern": attnkit.patterns,
    "position": attnkit.positions,
}
REGISTRIES = [*FAMILIES.values(), objectives, tasks, metrics, packings, readers]
NUMBERS = count()

BEGINNING = "import math\nimport torch\nimport attnkit\nfrom torch import nn\n\n\n"
Write = Callable[..., tuple[str, str]]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Write]:
    """Write a class of a family into a file of its own; its name there, and the file."""
    names = []

    def write(family: str, body: str, base: str = "") -> tuple[str, str]:
        name = f"own_{next(NUMBERS)}"
        path = tmp_path / f"{name}.py"
        base = base or {"scorer": "attnkit.Scorer"}.get(family, f"attnkit.attention.{family.capitalize()}")
        register = f"@attnkit.{family}s.register('{name}')\n"
        path.write_text(f"{BEGINNING}{register}class Own({base}):\n{textwrap.indent(body, '    ')}\n")
        names.append((family, name))
        return name, str(path)

    yield write
    for family, name in names:
        FAMILIES[family].pop(name, None)


INIT = "def __init__(self, **shape):\n    super().__init__(**shape)\n"
WITH_WEIGHT = f"{INIT}    self.w = nn.Parameter(torch.empty(3))"
NORMALIZER = "cancels_query_term = True\ndef forward(self, scores, allowed): return "
NO_SUPER = r"has an __init__ without super\(\)\.__init__: call that first"
NO_RESET = r"has parameters \(w\) but no reset_parameters: define it"
FAULTS = [
    (
        "scorer",
        "def map_query(self, query, at): return query[0]",
        r"gives float32 \[4, 7, 64\] from map_query: it has to",
    ),
    (
        "scorer",
        "def map_query(self, query, at): return query[0]",
        r".*give float32 \[B, H, Q, M\], here \[2, 4, 7, any\]",
    ),
    ("scorer", "def map_key(self, key, at): return key[..., :3]", r"gives .* 3\] from map_key: .*here \[2, 4, 5, 64\]"),
    (
        "scorer",
        "def map_key(self, key, at): return key.double()",
        r"gives float64 .* from map_key: it has to give float32",
    ),
    ("scorer", "def map_query(self, query, at): query * 2", r"gives None from map_query: it has to give"),
    (
        "scorer",
        "def map_key(self, key, at):\n    return key @ key",
        r"fails on 7 tokens: RuntimeError: .* \({file}:10\)$",
    ),
    ("scorer", "def map_key(self, key, at):\n    raise KeyError(1)", r"fails on 7 tokens: KeyError: 1 \({file}:10\)$"),
    (
        "scorer",
        "def map_key(self, key): return key",
        r"fails .*map_key\(\) takes 2 positional arguments but 3 were given",
    ),
    ("scorer", "def pair(self, query, key): return query @ key.mT", r"defines pair, which is for a class on Pairwise"),
    (
        "scorer",
        "def query_term(self, query): return query.sum(-1)",
        r"gives float32 \[2, 4, 7\] from query_term: .*Q, 1\]",
    ),
    ("scorer", "def __init__(self, **shape): pass", NO_SUPER),
    ("scorer", "def __init__(self, **shape): nn.Module.__init__(self)", NO_SUPER),
    ("scorer", f"{INIT}    1 / 0", r"cannot be built with options \{{\}}: ZeroDivisionError: .* \({file}:11\)$"),
    ("scorer", "def __init__(self, **s):\n    self.w = nn.Parameter(torch.ones(3))", r"cannot .*call \({file}:10\)$"),
    ("scorer", f"{INIT}    self.scale = 'big'", r"has scale 'big': give a finite number"),
    ("scorer", f"{INIT}    self.scale = math.inf", r"has scale inf: give a finite number"),
    (
        "scorer",
        "@property\ndef scale(self): return torch.ones(1)",
        r"has scale tensor\(.*: give .* or scale in map_query",
    ),
    ("scorer", WITH_WEIGHT, NO_RESET),
    ("scorer", f"{WITH_WEIGHT}\ndef reset_parameters(self): pass", r"has w, which reset_parameters does not set"),
    (
        "scorer",
        f"{INIT}    self.register_buffer('w', torch.ones(3), persistent=False)",
        r"has w, which reset_parameters does not set",
    ),
    (
        "scorer",
        f"{INIT}    self.w = torch.ones(self.head_dim)",
        r"keeps a tensor in its attribute 'w', .* register_buffer, and",
    ),
    ("normalizer", f"{NORMALIZER}scores\n{INIT}    self.w = torch.ones(3)", r"keeps a tensor in its attribute 'w'"),
    ("scorer", "def map_key(self, key, at): exit(3)", r"fails on 7 tokens: SystemExit: 3 \({file}:9\)$"),
    ("scorer", "def map_key(self, key, at): return key[:, :, :4]", r"gives float32 \[2, 4, 4, 64\] from map_key"),
    ("normalizer", f"{NORMALIZER}scores\n{WITH_WEIGHT}", NO_RESET),
    ("normalizer", f"{NORMALIZER}scores.sum(-1)", r"gives float32 \[2, 4, 7\] from forward: .*float32 \[B, H, Q, K\]"),
    ("normalizer", f"{NORMALIZER}scores * allowed", r"fails on 7 tokens: TypeError: "),
    (
        "normalizer",
        "def forward(self, scores, allowed): return scores",
        r"fails .* AttributeError: .*cancels_query_term",
    ),
    (
        "pattern",
        "def allowed(self, query, key): return query - key",
        r"gives int64 \[7, 5\] from allowed: .* bool \[Q, K\]",
    ),
    ("pattern", "def allowed(self, query, key): return None", r"gives None from allowed"),
    (
        "position",
        "def embed(self, positions): return positions",
        r"gives int64 \[2, 7\] from embed: .* here \[2, 7, 256\]",
    ),
    (
        "position",
        "def map_key(self, at, dtype, segments=None): return torch.ones(2, 4, 3, 5)",
        r"gives None from map_query",
    ),
]


@pytest.mark.parametrize(("family", "body", "said"), FAULTS)
def test_a_part_that_does_not_work_is_named_with_its_place(family: str, body: str, said: str, own: Write) -> None:
    name, file = own(family, body)
    with pytest.raises(UsageError) as raised:
        load(PretrainRun, ["--imports", file, f"--model.{family}", name])
    line = str(raised.value)
    begins = f"command line: model.{family}: Own ({file}:7) "
    assert line.startswith(begins)
    assert "\n" not in line
    assert re.match(said.format(file=re.escape(file)), line.removeprefix(begins)), line


@pytest.mark.parametrize(
    ("body", "base", "said"),
    [
        ("pass", "nn.Module", r"scorer '\w+': <class '\w+\.Own'> is no Scorer: write it as a class with Scorer as"),
        (
            "def __init__(self, num_heads): pass",
            "",
            r"Own\.__init__ got an unexpected keyword argument 'head_dim': let",
        ),
        ("", "attnkit.attention.Normalizer", r"is no Scorer"),
    ],
)
def test_a_class_that_is_no_part_is_refused_where_it_is_registered(body: str, base: str, said: str, own: Write) -> None:
    name, file = own("scorer", body or "pass", base)
    with pytest.raises(UsageError, match=rf"^command line: imports: {file}:\d+: .*{said}"):
        load(PretrainRun, ["--imports", file, "--model.scorer", name])


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.family)
def test_a_registry_shows_its_names_and_what_they_are(registry: Registry) -> None:
    title, *lines = repr(registry).splitlines()
    assert title == f"{registry.family}:"
    assert [line.split()[0] for line in lines] == list(registry)
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.family)
def test_every_registry_refuses_what_it_could_not_build(registry: Registry) -> None:
    with pytest.raises(UsageError, match=r"is no \w+: write it as a class with"):
        registry.register("new")(dict)
    with pytest.raises(UsageError, match=r'is registered under a name: write register\("name"\) above'):
        registry.register(dict)
    taken = next(iter(registry))
    with pytest.raises(UsageError, match=f"'{taken}' is already registered as"):
        registry.register(taken)(registry[taken])
    if vars(registry.base).get("__abstractmethods__"):
        with pytest.raises(UsageError, match=r"Lacking does not define what every \w+ does: \w+"):
            registry.register("new")(type("Lacking", (registry.base,), {}))
    assert "new" not in registry


def test_a_layer_a_cross_attention_and_an_option_are_named_by_their_own_key(own: Write) -> None:
    name, file = own("scorer", "def map_key(self, key, positions): return None")
    layers = ["--model.num_hidden_layers", "1"]
    for key, words, said in (
        ("layer_scorers", [*layers, "--model.layer_scorers", f"[{name}]"], "Own"),
        ("layer_scorers", [*layers, "--model.layer_scorers", "[dott]"], "unknown scorer 'dott'"),
        ("layer_scorers", [*layers, "--model.layer_scorers", "[{cosine: {x: 1}}]"], "Cosine takes no option 'x'"),
        ("layer_patterns", [*layers, "--model.layer_patterns", "[ful]"], "unknown pattern 'ful'"),
        ("layer_patterns", [*layers, "--model.layer_patterns", "[{banded: {x: 1}}]"], "Banded takes no option 'x'"),
        ("layer_patterns", [*layers, "--model.layer_patterns", "[{banded: {before: 0}}]"], "pattern option before"),
        ("layer_scorers", [*layers, "--model.layer_scorers", "[location]"], "order enters twice"),
        ("cross_scorer", ["--model.architecture", "encoder-decoder", "--model.cross_scorer", name], "Own"),
        ("cross_scorer", ["--model.architecture", "encoder-decoder", "--model.cross_scorer", "dott"], "unknown scorer"),
        (
            "cross_scorer_options",
            [
                "--model.architecture=encoder-decoder",
                "--model.cross_scorer=cosine",
                "--model.cross_scorer_options={x: 1}",
            ],
            "Cosine takes no option 'x'",
        ),
    ):
        with pytest.raises(UsageError, match=f"^command line: model.{key}: {said}"):
            load(PretrainRun, ["--imports", file, *words])


def test_a_part_that_has_to_see_numbers_gets_some_and_no_draw_of_the_run_changes(own: Write) -> None:
    body = "def map_key(self, key, positions):\n    return key if key.sum() > 0 or torch.rand(1) < 2 else None"
    name, file = own("scorer", body)
    import_part(absolute(file, Path()))
    state = torch.get_rng_state()
    assert attnkit.AttnKitConfig(scorer=name).scorer == name
    assert torch.equal(state, torch.get_rng_state())


def test_options_may_be_words_of_any_kind_and_types_may_be_for_checkers_alone(own: Write) -> None:
    body = (
        "def __init__(self, factor: 'Unknown' = 2.0, **shape):\n    super().__init__(**shape)\n    self.scale = factor"
    )
    name, file = own("scorer", body)
    import_part(absolute(file, Path()))
    assert attnkit.AttnKitConfig(scorer=name, scorer_options={"factor": 3.0}).scorer == name


def test_our_parts_work_without_memory_and_at_a_single_position() -> None:
    for scorer in attnkit.scorers:
        attnkit.AttnKitConfig(scorer=scorer, position="none", max_position_embeddings=1, num_key_value_heads=2)
    for family, registry in FAMILIES.items():
        for name in registry if family != "scorer" else []:
            attnkit.AttnKitConfig(**{"max_position_embeddings": 1, "num_key_value_heads": 2, family: name})
