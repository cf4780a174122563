"""A LangBot database, migrated; then the plugin's messages reach the agent of their own pipeline."""

import base64
import json
import os
import sqlite3
import subprocess
import typing
import urllib.request
from pathlib import Path

import pytest

from langbot import context, execute, failure, messages
from test_gateway import binary

_PIPELINES = {"p-1": "Support", "p-2": "Orders"}
_SECONDS = 60


def database(path: Path) -> None:
    """The tables of LangBot 4.11 that the pipelines need."""
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE legacy_pipelines (uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), description VARCHAR(255),
            is_default BOOLEAN, stages JSON, config JSON, extensions_preferences JSON, workspace_uuid VARCHAR(36),
            created_at TIMESTAMP, updated_at TIMESTAMP);
        CREATE TABLE model_providers (uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), requester VARCHAR(255),
            base_url VARCHAR(512), api_keys JSON, workspace_uuid VARCHAR(36));
        CREATE TABLE llm_models (uuid VARCHAR(255) PRIMARY KEY, name VARCHAR(255), provider_uuid VARCHAR(255),
            abilities JSON, context_length INTEGER, extra_args JSON, workspace_uuid VARCHAR(36));
        INSERT INTO model_providers VALUES
            ('pr-1', 'P', 'openai-chat-completions', 'https://a.example/v1', '[]', 'w');
        INSERT INTO llm_models VALUES ('m-1', 'gpt', 'pr-1', '[]', NULL, '{}', 'w');
    """)
    config = {
        "ai": {"runner": {"runner": "local-agent"}, "local-agent": {"model": {"primary": "m-1", "fallbacks": []}}}
    }
    for number, (pipeline, name) in enumerate(_PIPELINES.items()):
        row = (pipeline, name, "", False, "[]", json.dumps(config), "{}", "w", f"2026-01-0{number + 1}", "2026-01-01")
        connection.execute("INSERT INTO legacy_pipelines VALUES (?,?,?,?,?,?,?,?,?,?)", row)
    connection.commit()
    connection.close()


class Gateway:
    """`runnel serve` on the migrated configuration, with a scripted model and the Local Agent in its process."""

    def __init__(self, directory: Path) -> None:
        database(directory / "langbot.db")
        self._directory = directory
        self._environment = {
            **os.environ,
            "RUNNEL_MASTER_KEY": "00112233445566778899aabbccddeeff" * 2,
            "RUNNEL__DATABASE__URL": f"sqlite://{directory}/runnel.db",
            "RUNNEL__SERVER__LISTEN": "127.0.0.1:0",
        }
        self._runnel("migrate-config", "langbot.db", "--local-agent", "runnel", "--write", "runnel.toml")
        written = (directory / "runnel.toml").read_text()
        head, _, rest = written.partition("[[runner_endpoints]]")
        agents = rest[rest.index("[[agents]]") :]
        scripted = head.replace('kind = "openai"\nbase_url = "https://a.example/v1"', 'kind = "scripted"')
        made = f"{scripted}\n[builtin_runners]\nlocal_agent = true\n\n{agents}"
        (directory / "runnel.toml").write_text(made)
        self.key = self._runnel("token", "create", "--role", "client", "--name", "langbot").split()[-1]
        with open(directory / "log", "w") as log:
            self._process = subprocess.Popen(
                [binary(), "serve"], cwd=directory, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[-1]

    def get(self, path: str) -> typing.Any:
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.load(answer)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _runnel(self, *arguments: str) -> str:
        done = subprocess.run(
            [binary(), *arguments], cwd=self._directory, env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("migrated"))
    yield made
    made.stop()


def config(gateway: Gateway, **more: str) -> dict[str, typing.Any]:
    return {"url": gateway.url, "api-key": gateway.key, **more}


@pytest.mark.parametrize("by_setting", [False, True], ids=["by LangBot", "by setting"])
@pytest.mark.parametrize("pipeline", _PIPELINES)
def test_migrated_pipelines_answer_their_own_messages(gateway: Gateway, pipeline: str, by_setting: bool) -> None:
    conversation = f"{pipeline}-{by_setting}"
    picture = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    given = {
        "text": "hello",
        "contents": [{"type": "text", "text": "hello"}, {"type": "image_base64", "image_base64": picture}],
        # As LangBot 4.11.2 lists a picture and its element of the message chain.
        "attachments": [{"type": "image", "source": "base64", "content": picture}, {"type": "image", "id": None}],
    }
    # The first message after a start of LangBot has no id.
    subject = {"subject_type": "message", "subject_id": "", "data": {"launcher_type": "person", "launcher_id": "u"}}
    named = {"event_id": conversation, "conversation_id": conversation, "subject": subject, "input": given}
    settings = config(gateway, pipeline=pipeline) if by_setting else config(gateway)
    found = execute(context("", settings, **named), None if by_setting else pipeline)
    assert messages(found), found
    [run] = gateway.get(f"/v1/runs?conversation_id={conversation}")["items"]
    assert (run["agent_name"], run["status"]) == (_PIPELINES[pipeline], "completed")


def test_other_pipelines_have_no_agent(gateway: Gateway) -> None:
    found = execute(context("hi", config(gateway), event_id="other"), "p-3")
    assert failure(found) == "runnel.no_agent"
