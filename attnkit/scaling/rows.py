"""The ten rows of the size table: what a lecture's table says of each, what its sources say, and where they disagree.

The architectures are the YAML files of `configs/sizes`. `table` figures are the lecture's ("Scaling up Transformers").
"""

from dataclasses import dataclass
from pathlib import Path

from attnkit.errors import UsageError, nearest

HOUR, DAY = 1.0, 24.0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Rows of one length that a model was trained on."""

    rows: float
    seq_len: int
    predicted: int | None = None  # positions per row that go through the head; None for all
    past: int = 0  # tokens of memory


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model. Times are in hours."""

    name: str
    label: str
    year: int
    table_parameters: float
    table_text: str
    data: str
    phases: tuple[Phase, ...] = ()
    device: str | None = None
    dtype: str | None = None  # in which the device worked; None for its fastest
    num_devices: int | None = None
    table_hours: float | None = None
    published_flops: float | None = None
    published_by: str = ""
    full_recompute: bool = False
    heads_text: str = ""  # what the table has in place of a number of heads
    notes: tuple[str, ...] = ()


ROWS = (
    Row(
        name="transformer-base",
        label="Transformer-Base",
        year=2017,
        table_parameters=65e6,
        table_text="65M",
        data="",
        phases=(Phase(rows=100_000 * 25_000 / 27, seq_len=27),),
        device="P100",
        dtype="fp32",
        num_devices=8,
        table_hours=12 * HOUR,
        published_flops=3.3e18,
        published_by="Vaswani 2017, table 2: time x 8 devices x 9.5 TFLOP/s, a bound of the hardware",
        notes=(
            "65M and 213M cannot come from one vocabulary: the base rows of table 3 need about 41,100 tied rows, 'big' "
            "about 35,900; section 5.1 states about 37,000, which fits neither and is what is counted",
            "batches of 25,000 source and 25,000 target tokens; that a sentence has 27 of them is an assumption",
        ),
    ),
    Row(
        name="transformer-large",
        label="Transformer-Large",
        year=2017,
        table_parameters=213e6,
        table_text="213M",
        data="",
        phases=(Phase(rows=300_000 * 25_000 / 27, seq_len=27),),
        device="P100",
        dtype="fp32",
        num_devices=8,
        table_hours=3.5 * DAY,
        published_flops=2.3e19,
        published_by="Vaswani 2017, table 2: likewise a bound of the hardware",
    ),
    Row(
        name="bert-base",
        label="BERT-Base",
        year=2018,
        table_parameters=110e6,
        table_text="110M",
        data="13GB",
        phases=(
            Phase(rows=900_000 * 256, seq_len=128, predicted=20),
            Phase(rows=100_000 * 256, seq_len=512, predicted=77),
        ),
        published_flops=1.64e20,
        published_by="Brown 2020, table D.1, which assumes 250B tokens",
        notes=("42.6B tokens: 90% of the steps have 128 tokens, 10% have 512 (appendix A.2)",),
    ),
    Row(
        name="bert-large",
        label="BERT-Large",
        year=2018,
        table_parameters=340e6,
        table_text="340M",
        data="13GB",
        phases=(
            Phase(rows=900_000 * 256, seq_len=128, predicted=20),
            Phase(rows=100_000 * 256, seq_len=512, predicted=77),
        ),
        published_flops=5.33e20,
        published_by="Brown 2020, table D.1, which assumes 250B tokens",
        notes=("340M are the 335.1M of the body, or the 336.2M with its heads, to two digits",),
    ),
    Row(
        name="xlnet-large",
        label="XLNet-Large",
        year=2019,
        table_parameters=340e6,
        table_text="~340M",
        data="126GB",
        phases=(Phase(rows=500_000 * 2048, seq_len=512, predicted=85, past=384),),
        device="TPUv3",
        num_devices=512,
        table_hours=2.5 * DAY,
        notes=(
            "'the same size as BERT-Large', but its projections of relative positions add 25.2M",
            "2.5 days are version 1 of the paper (batch 2048); version 2 took 5.5 days at batch 8192",
            "FLOPs are those of the published algorithm; attnkit computes the same scores as one wider product",
        ),
    ),
    Row(
        name="roberta",
        label="RoBERTa",
        year=2019,
        table_parameters=355e6,
        table_text="355M",
        data="160GB",
        phases=(Phase(rows=100_000 * 8192, seq_len=512, predicted=77),),
        device="V100",
        num_devices=1024,
        table_hours=1 * DAY,
        published_flops=4.26e21,
        published_by="Brown 2020, table D.1: the run of 500K steps",
        notes=("'1 day' is the run of 100K steps on 16GB, not that of 500K steps on 160GB",),
    ),
    Row(
        name="gpt-2",
        label="GPT-2",
        year=2019,
        table_parameters=1.5e9,
        table_text="1.5B",
        data="40GB",
        heads_text="?",
        notes=(
            "the authors' repository says that their early counts were wrong; steps and tokens were never published",
            "the table has no number of heads: 25, those of the released checkpoint",
        ),
    ),
    Row(
        name="megatron-lm",
        label="Megatron-LM",
        year=2019,
        table_parameters=8.3e9,
        table_text="8.3B",
        data="174GB",
        phases=(Phase(rows=300_000 * 512, seq_len=1024),),
        device="V100",
        num_devices=512,
        table_hours=9 * DAY,
        published_flops=8.1e21,
        published_by="Gholami 2024, 'AI and memory wall'",
        full_recompute=True,
        notes=("32 heads are those of the scaling study (table 1), the trained model has 24 (table 2): same count",),
    ),
    Row(
        name="turing-nlg",
        label="Turing-NLG",
        year=2020,
        table_parameters=17e9,
        table_text="17B",
        data="?",
        phases=(Phase(rows=300_000 * 512, seq_len=1024),),
        device="V100",
        num_devices=256,
        published_flops=2.8e22,
        published_by="Gholami 2024, 'AI and memory wall'",
        full_recompute=True,
        notes=("its padded vocabulary was not published: 51,200, that of Megatron-LM, is counted",),
    ),
    Row(
        name="gpt-3",
        label="GPT-3",
        year=2020,
        table_parameters=175e9,
        table_text="175B",
        data="694GB",
        phases=(Phase(rows=300e9 / 2048, seq_len=2048),),
        published_flops=3.14e23,
        published_by="Brown 2020, table D.1",
        notes=(
            "694GB is 570GB of filtered text x 499/410, all tokens over those of Common Crawl; no source states it",
            "attention alternates between dense and banded, whose band was not published: all layers are counted dense",
        ),
    ),
)
BY_NAME = {row.name: row for row in ROWS}


def find_row(name: str) -> Row:
    """A row by the stem of its file."""
    if name not in BY_NAME:
        raise UsageError(f"unknown row {name!r}: {nearest(name, BY_NAME)}")
    return BY_NAME[name]


def config_of(row: Row) -> Path:
    """The row's YAML file: inside the installed package, or in the repository beside it."""
    package = Path(__file__).parent
    for folder in (package / "sizes", package.parents[1] / "configs" / "sizes"):
        if (folder / f"{row.name}.yaml").is_file():
            return folder / f"{row.name}.yaml"
    raise UsageError(f"configs/sizes/{row.name}.yaml is missing: install attnkit from its wheel or its repository")
