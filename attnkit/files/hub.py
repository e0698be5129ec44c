"""The Hugging Face hub: asked once and plainly whether it has something, so that a user offline is not kept waiting."""

from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import httpx

from attnkit.errors import UsageError, first_line

TIMEOUT = 10.0  # seconds


def require_repository(name: str, *, kind: Literal["dataset", "model"], remedy: str) -> None:
    """Raise `UsageError` if the hub has no such repository or cannot be reached; `remedy` says what to give instead.

    The libraries that load from the hub try several times, for minutes, and print each failure: this asks before them.
    With HF_HUB_OFFLINE nothing is asked, since a copy that was downloaded before may do; of a model there must be one.
    """
    api = HfApi()
    ask = api.dataset_info if kind == "dataset" else api.model_info
    try:
        ask(name, timeout=TIMEOUT)
    except OfflineModeIsEnabled:
        if kind == "model":
            require_copy(name, remedy=remedy)
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise UsageError(f"{name!r} is neither a file or folder here nor a {kind} on the hub; {remedy}") from error
    except httpx.HTTPError as error:
        raise unreachable(name, kind=kind, remedy=remedy) from error


def require_copy(name: str, *, remedy: str) -> None:
    """Raise `UsageError` if no copy of a model of the hub was downloaded before."""
    try:
        snapshot_download(name, local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise unreachable(name, kind="model", remedy=f"{remedy}, or unset HF_HUB_OFFLINE") from error


def unreachable(name: str, *, kind: Literal["dataset", "model"], remedy: str) -> UsageError:
    """The error for something that is not here, while the hub cannot be asked for it."""
    return UsageError(
        f"{name!r} is no file or folder here, and the hub cannot be reached for a {kind} of that name; {remedy}"
    )


def open_repository(name: str, *, key: str) -> None:
    """Make a repository for a model on the hub, unless it is there and one's own.

    Raises `UsageError`, which names the setting `key`, if there is no token or no hub, or if it refuses.
    """
    otherwise = f"or leave {key} out"
    try:
        if get_token() is None:
            raise UsageError(f"{key}: there is no token to write to {name!r} with: run `hf auth login`, {otherwise}")
        HfApi().create_repo(name, exist_ok=True)
        HfApi().auth_check(name, write=True)  # one that is there may be somebody else's
    except OfflineModeIsEnabled as error:
        raise UsageError(f"{key}: {name!r} cannot be written to offline: unset HF_HUB_OFFLINE, {otherwise}") from error
    except (HFValidationError, HfHubHTTPError) as error:
        raise UsageError(f"{key}: {name!r} is refused: {first_line(error)}: give another name, {otherwise}") from error
    except httpx.HTTPError as error:
        raise UsageError(f"{key}: the hub cannot be reached for {name!r}: try again, {otherwise}") from error


def upload(folder: Path, name: str, *, key: str) -> str:
    """Upload all files of a folder to a repository, and return where they are to be seen.

    Raises `UsageError` if the hub does not take them.
    """
    try:
        commit = HfApi().upload_folder(repo_id=name, folder_path=folder, commit_message="Trained by attnkit")
    except (httpx.HTTPError, OSError) as error:
        raise UsageError(
            f"{key}: {folder} is saved, but not uploaded ({first_line(error)}): run `hf upload {name} {folder}`"
        ) from error
    return str(commit.repo_url)
