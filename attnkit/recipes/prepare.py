"""Preparation: text is tokenized and packed once, for any number of runs, and no process of them waits for another."""

from pathlib import Path

from attnkit.config.runs import PretrainRun
from attnkit.data.objectives import objectives
from attnkit.data.prepared import check_shards, differences, other_rows, read_manifest, write_prepared
from attnkit.errors import UsageError
from attnkit.files.disk import is_free
from attnkit.recipes.inputs import absolute_data, tokenizer_path
from attnkit.recipes.text import (
    figures_of_text,
    get_tokenizer,
    held_out_account,
    held_out_setting,
    read_documents,
    say_text,
    source_accounts,
    trained_settings,
)
from attnkit.training.launch import make_accelerator


def prepare(run: PretrainRun) -> str:
    """Fill the folder `data.prepared` with the rows of a run, unless it holds just these; return what there is to say.

    Raises `UsageError` for whatever is wrong with the text, the tokenizer and the objective, and for a folder that
    holds anything else.
    """
    if run.data.prepared is None:
        raise UsageError("data.prepared: name the folder that is to hold the rows, --data.prepared FOLDER")
    folder, data = Path(run.data.prepared), absolute_data(run.data)
    if folder.is_file():
        raise UsageError(f"data.prepared: {folder} is a file; choose a folder")
    manifest = None if is_free(folder) else read_manifest(folder)
    documents = read_documents(data, run.objective)
    path = tokenizer_path(run)
    tokenizer = get_tokenizer(
        documents,
        run.tokenizer,
        path=path,
        objective=run.objective,
        data=data,
        accelerator=make_accelerator(num_processes=1),
    )
    objective = objectives[run.objective.name](tokenizer, run.objective, data=data)
    if manifest is None:
        trained = trained_settings(run.tokenizer) if path is None else {}
        manifest = write_prepared(folder, documents, tokenizer, objective=objective, trained=trained)
        done = {"prepared": str(folder)}
    else:
        found = differences(manifest, documents, tokenizer, objective=objective)
        if found:
            raise other_rows(folder, found)
        check_shards(folder, manifest)
        done = {"kept": f"{folder} as it is: it holds just these rows"}
    # Of the accounts alone: the rows themselves would fill the memory that they were written in.
    accounts = manifest.accounts_by_group()
    sources = source_accounts(accounts, documents=documents, objective=objective)
    held_out = held_out_account(accounts, named=held_out_setting(data))
    lines = {
        "text": say_text(figures_of_text(sources, duplicates=manifest.duplicates)),
        "held-out": say_text({**vars(held_out), "sources": {}}),
        **done,
    }
    return "\n".join(f"{name:<12}{line}".replace("\n", "\n" + " " * 12) for name, line in lines.items())
