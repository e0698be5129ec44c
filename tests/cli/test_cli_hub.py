"""A model that is to be uploaded: whatever stands against it is known before the training, and a hub gets all files."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command_line import Cli
from huggingface_hub import constants

TRAINING = ("--training.max_steps", "2", "--training.warmup_steps", "1")
REPOSITORY = "somebody/small"


class Hub(ThreadingHTTPServer):
    """As much of a hub as takes a repository and one commit of files that lie in it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.refuses = self.may_not_write = False


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = f"http://127.0.0.1:{self.server.server_port}/{REPOSITORY}"
        if self.headers["Authorization"] != "Bearer token" or self.server.refuses:
            return self.say({"error": "no"}, status=403)
        if self.path.endswith("/repos/create"):
            return self.say({"url": url})
        if self.path.endswith("/validate-yaml"):
            return self.say({"errors": [], "warnings": []})
        if self.path.endswith("/preupload/main"):
            how = {"uploadMode": "regular", "shouldIgnore": False}
            return self.say({"files": [{"path": file["path"], **how} for file in json.loads(body)["files"]]})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return self.say({"commitUrl": f"{url}/commit/{'0' * 40}", "commitOid": "0" * 40, "pullRequestUrl": None})

    def do_GET(self) -> None:
        is_asked = self.path.endswith("/auth-check/write")
        self.say({}, status=200 if is_asked and not self.server.may_not_write else 403)

    def say(self, values: dict[str, object], *, status: int = 200) -> None:
        text = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on this machine; the libraries read where theirs is when they are imported."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "token")
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()


def pretrain(cli: Cli, config: Path, folder: Path) -> tuple[int, list[str], list[str]]:
    words = ("--training.output_dir", folder, "--push_to_hub", REPOSITORY)
    return cli("pretrain", "--config", config, *TRAINING, *words)


def test_the_hub_gets_the_model_with_its_card(cli: Cli, config: Path, tmp_path: Path, hub: Hub) -> None:
    code, said, errors = pretrain(cli, config, tmp_path / "run")
    assert (code, errors) == (0, [])
    assert said[-1] == f"published   http://127.0.0.1:{hub.server_port}/{REPOSITORY}"
    model = tmp_path / "run" / "model"
    assert hub.files.keys() - {".gitattributes"} == {path.name for path in model.iterdir()}
    for name in ("README.md", "model.safetensors", "tokenizer.json"):
        assert hub.files[name] == (model / name).read_bytes()


def test_what_stands_against_an_upload_is_known_before(
    cli: Cli, config: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error() -> str:
        code, _, [line] = pretrain(cli, config, tmp_path / "run")
        assert code == 2
        assert not (tmp_path / "run").exists()
        return line

    hub.may_not_write = True
    assert f"training.push_to_hub: '{REPOSITORY}' is refused: " in error()
    hub.refuses = True
    assert f"training.push_to_hub: '{REPOSITORY}' is refused: " in error()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert f"training.push_to_hub: the hub cannot be reached for '{REPOSITORY}'" in error()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "cannot be written to offline: unset HF_HUB_OFFLINE, or leave training.push_to_hub out" in error()
    monkeypatch.delenv("HF_TOKEN")
    assert "there is no token to write to 'somebody/small' with: run `hf auth login`" in error()


def test_a_model_that_the_hub_does_not_take_is_saved(
    cli: Cli, config: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    class Failing(Answer):
        def do_POST(self) -> None:
            if self.path.endswith("/preupload/main"):
                self.server.refuses = True
            super().do_POST()

    hub.RequestHandlerClass = Failing
    code, _, [line] = pretrain(cli, config, folder)
    assert code == 2
    assert f"{folder / 'model'} is saved, but not uploaded (" in line
    assert f"run `hf upload {REPOSITORY} {folder / 'model'}`" in line
    assert (folder / "report.html").is_file()
