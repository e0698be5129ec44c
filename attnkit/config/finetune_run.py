"""The run of a task, apart from those that read text: tasks bring libraries that these can do without."""

from dataclasses import dataclass, field

from attnkit.config.runs import ModelConfig
from attnkit.data.tokenizer import TokenizerConfig
from attnkit.errors import batch_problems, repeated, seed_problems
from attnkit.tasks.adapter import AdapterConfig
from attnkit.tasks.base import TaskConfig
from attnkit.tasks.examples import ExamplesConfig
from attnkit.training.settings import TrainingConfig
from attnkit.training.tracking import TrackingConfig


@dataclass(kw_only=True)
class GridConfig:
    """Several runs in place of one, one for every combination of what is listed, in folders of their own."""

    seeds: list[int] = field(default_factory=list)
    """Seeds in place of `training.seed`; the figures are then a mean and a deviation."""
    learning_rates: list[float] = field(default_factory=list)
    """Rates in place of `training.learning_rate`."""
    batch_sizes: list[int] = field(default_factory=list)
    """Sizes in place of `training.per_device_batch_size`."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        found = [problem for seed in self.seeds for problem in seed_problems("grid.seeds", seed)]
        found += [f"grid.learning_rates: {rate} must be more than 0" for rate in self.learning_rates if rate <= 0]
        found += [problem for size in self.batch_sizes for problem in batch_problems("grid.batch_sizes", size)]
        for name, values in vars(self).items():
            found += [f"grid.{name}: {value} is there twice; give it once" for value in repeated(values)]
        return found

    @property
    def is_empty(self) -> bool:
        """Whether it is one run after all."""
        return not (self.seeds or self.learning_rates or self.batch_sizes)


@dataclass(kw_only=True)
class FinetuneRun:
    """Everything that a fine-tuning run depends on."""

    data: ExamplesConfig = field(default_factory=ExamplesConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    imports: list[str] = field(default_factory=list)
    """Python files (relative to the config that names them) or modules that register parts; imported first."""
