"""A tokenizer of its own: trained once, and given to any number of runs as `tokenizer.path`."""

from pathlib import Path

from attnkit.config.runs import TokenizerRun
from attnkit.data.documents import Documents
from attnkit.data.objectives import objectives
from attnkit.data.tokenizer import train_tokenizer
from attnkit.errors import UsageError
from attnkit.files.disk import filling, is_free, is_ours, seal
from attnkit.training.run_folder import writing


def make_tokenizer(run: TokenizerRun) -> str:
    """Train a tokenizer on the documents to train on, save it, and return what there is to say.

    Raises `UsageError` if the text is missing or supports no such vocabulary, and for a folder that is in use.
    """
    folder = Path(run.output_dir)
    if run.tokenizer.path is not None:
        raise UsageError(f"tokenizer.path: {run.tokenizer.path} is trained already: leave it out")
    if folder.is_file():
        raise UsageError(f"output_dir: {folder} is a file: choose a folder")
    if not is_free(folder):
        if not is_ours(folder, "tokenizer.json"):
            raise UsageError(f"output_dir: {folder} is not empty, and holds no tokenizer of ours: choose another")
        if not run.overwrite:
            raise UsageError(f"output_dir: {folder} holds a tokenizer: replace it by --overwrite, or choose another")
    extra_tokens = objectives[run.objective.name].extra_tokens(run.objective, data=run.data)
    texts = [*Documents(run.data).train_texts]
    tokenizer = train_tokenizer(
        texts, run.tokenizer, model_max_length=run.data.sequence_length, extra_tokens=extra_tokens
    )
    with writing(folder, setting="output_dir"), filling(folder, setting="output_dir") as staging:
        tokenizer.save_pretrained(staging)
        seal(staging)
    num_tokens = sum(len(ids) for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])
    num_bytes = sum(len(text.encode()) for text in texts)
    return (
        f"text        {len(texts):,} documents, {num_bytes:,} bytes\n"
        f"tokenizer   {run.tokenizer.algorithm}, {len(tokenizer):,} entries, {num_bytes / num_tokens:.2f} bytes/token\n"
        f"saved       {folder}"
    )
