"""The Hugging Face hub: asked once and plainly whether it has something, so that a user offline is not kept waiting."""

from typing import Literal

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.utils import httpx

from attnkit.errors import UsageError

TIMEOUT = 10.0  # seconds


def require_repository(name: str, *, kind: Literal["dataset", "model"], remedy: str) -> None:
    """Raise `UsageError` if the hub has no such repository or cannot be reached; `remedy` says what to give instead.

    The libraries that load from the hub try several times, for minutes, and print each failure: this asks before them.
    With HF_HUB_OFFLINE nothing is asked, since a copy that was downloaded before may do.
    """
    api = HfApi()
    ask = api.dataset_info if kind == "dataset" else api.model_info
    try:
        ask(name, timeout=TIMEOUT)
    except OfflineModeIsEnabled:
        return
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise UsageError(f"{name!r} is neither a file or folder here nor a {kind} on the hub; {remedy}") from error
    except httpx.HTTPError as error:
        raise unreachable(name, kind=kind, remedy=remedy) from error


def unreachable(name: str, *, kind: Literal["dataset", "model"], remedy: str) -> UsageError:
    """The error for something that is not here, while the hub cannot be asked for it."""
    return UsageError(
        f"{name!r} is no file or folder here, and the hub cannot be reached for a {kind} of that name; {remedy}"
    )
