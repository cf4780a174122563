"""The programs of the documentation: those with imports are complete, and run."""

import sys
import typing
from pathlib import Path

import httpx
import pytest

import gateway_process
from gateway_process import SECRET, Playground, Process, conform
from runnel import Client

REPOSITORY = Path(__file__).parents[3]
PAGES = ("docs/runners/python.md", "docs/clients.md", "clients/python/README.md")


def programs(page: str) -> list[str]:
    """The Python blocks of a page that import the package."""
    text = (REPOSITORY / page).read_text()
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    return [block for block in blocks if block.startswith("from runnel")]


def test_licence_is_that_of_the_repository() -> None:
    assert (REPOSITORY / "clients/python/LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()


def test_pages_have_programs() -> None:
    assert [len(programs(page)) for page in PAGES] == [3, 1, 4]


@pytest.mark.parametrize(
    ("page", "number"), [("docs/runners/python.md", 0), ("docs/runners/python.md", 2), ("clients/python/README.md", 2)]
)
def test_documented_runners_pass_conform(page: str, number: int, tmp_path: Path) -> None:
    gateway_process.binary()
    program = programs(page)[number].replace("port=9100", "port=0")
    if "endpoint.serve" not in program:
        program += "\nendpoint.serve(port=0)\n"
    (tmp_path / "main.py").write_text(program)
    runner = Process([sys.executable, "main.py"], tmp_path, {"RUNNER_SECRET": SECRET})
    try:
        [runner_id] = [line.split('"')[1] for line in program.splitlines() if '"plugin:' in line]
        assert not conform(runner.first_line.split()[1], runner_id)["counts"]["fail"]
    finally:
        runner.stop()


@pytest.mark.parametrize(
    ("page", "number", "printed"),
    [
        ("docs/clients.md", 0, "Runnel is a gateway"),
        ("clients/python/README.md", 0, "Runnel is a gateway"),
        ("clients/python/README.md", 1, "completed\nuser Read the report."),
    ],
)
def test_documented_clients_print_the_answer(
    page: str,
    number: int,
    printed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway_process.binary()
    playground = Playground(tmp_path)
    monkeypatch.setenv("RUNNEL_URL", playground.url)
    monkeypatch.setenv("RUNNEL_API_KEY", playground.key)
    try:
        program = programs(page)[number].replace('"http://127.0.0.1:8700", "rnl_…"', "")
        names: dict[str, typing.Any] = {}
        exec(compile(program, page, "exec"), names)
        assert printed in capsys.readouterr().out
    finally:
        playground.stop()


def test_chat_page_gives_the_browser_a_link(tmp_path: Path) -> None:
    gateway_process.binary()
    playground = Playground(tmp_path)
    environment = {"RUNNEL_URL": playground.url, "RUNNEL_API_KEY": playground.key, "PORT": "0"}
    page = Process([sys.executable, str(REPOSITORY / "examples/python/chat_page.py")], tmp_path, environment)
    try:
        url = page.first_line.split()[1]
        assert "EventSource" in httpx.get(url).text
        question = {"text": "What is Runnel?", "conversation": "page-1"}
        link = httpx.post(f"{url}/ask", json=question, timeout=30).json()["url"]
        assert playground.key not in link
        assert httpx.get(link).status_code == 400, "a reader without the header"
        stream = httpx.get(link, headers={"accept": "text/event-stream"}, timeout=30).text
        assert "Runnel is a gateway" in stream
    finally:
        page.stop()
        playground.stop()


def test_readme_calls_each_client_method() -> None:
    methods = {name for name, member in vars(Client).items() if name[0] != "_" and callable(member)} - {"close"}
    text = "".join(programs("clients/python/README.md"))
    assert {name for name in methods if f"client.{name}(" not in text} == set()


@pytest.mark.parametrize("page", PAGES)
def test_documented_programs_compile(page: str) -> None:
    for program in programs(page):
        compile(program, page, "exec")
