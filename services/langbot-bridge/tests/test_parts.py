"""The pure parts: signatures, secrets, results, manifests, routes."""

import json

import pytest

from langbot_bridge import manifest, results
from langbot_bridge.replies import content_of, reply_of
from langbot_bridge.routes import KeyFaultError, Route, path_of, route_of
from langbot_bridge.secrets import SecretError, Secrets
from langbot_bridge.signatures import InvalidSecretError, Keys, SeenIds, SignatureError

# The vector that the gateway and its runner kit sign and accept, too.
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
NOW = 1_795_291_200
BODY = b'{"action":"list_runners"}'
SIGNED = {
    "webhook-id": "list_01a1ffb1ba007c3a9b1e5f0c2a7d4e61",
    "webhook-timestamp": str(NOW),
    "webhook-signature": "v1,dSOfZVEacqpM+fy6+hUiHSOnD7J5vpwvq1QHcy4M8vs=",
}


def delta(content: str, **fields: object) -> dict:
    chunk = {"role": "assistant", "content": content, **fields}
    return {"run_id": "r", "type": "message.delta", "data": {"chunk": chunk}}


def test_accepts_the_published_vector() -> None:
    keys = Keys(SECRET)
    assert keys.fresh(SIGNED, NOW) == NOW
    keys.verify(SIGNED, BODY)
    assert keys.sign(SIGNED["webhook-id"], NOW, BODY) == SIGNED


def test_accepts_one_good_signature_among_several() -> None:
    other = "whsec_" + "b3RoZXIx" * 4
    several = f"v1a,xyz v1,AAAA {SIGNED['webhook-signature']} v1,!!"
    Keys(f"{other}\n{SECRET}").verify({**SIGNED, "webhook-signature": several}, BODY)
    with pytest.raises(SignatureError):
        Keys(other).verify(SIGNED, BODY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook-id": ""},
        {"webhook-id": "a.b"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": str(NOW - 301)},
        {"webhook-timestamp": str(NOW + 301)},
    ],
)
def test_refuses_broken_and_old_headers(wrong: dict[str, str]) -> None:
    with pytest.raises(SignatureError):
        Keys(SECRET).fresh({**SIGNED, **wrong}, NOW)


@pytest.mark.parametrize("text", ["", "MDEy", "whsec_MDEy", "whsec_!", SECRET.removeprefix("whsec_")])
def test_refuses_weak_secrets(text: str) -> None:
    with pytest.raises(InvalidSecretError):
        Keys(text)


def test_ids_pass_once_while_their_signature_lives() -> None:
    seen = SeenIds(8)
    assert seen.insert("a", 1000, 1000)
    assert not seen.insert("a", 1300, 1300)
    assert seen.insert("a", 1700, 1700)


def test_full_memory_refuses_requests_of_forgotten_age() -> None:
    seen = SeenIds(3)
    for name, when in [("a", 1000), ("b", 1001), ("c", 1002), ("d", 1003)]:
        assert seen.insert(name, when, 1003)
    assert not seen.insert("a", 1000, 1003)
    assert not seen.insert("new", 1000, 1003)
    assert seen.insert("new", 1001, 1003)


def test_secrets_need_their_prefix() -> None:
    secrets = Secrets(["BRIDGE_", "DIFY_"], {"DIFY_KEY": "k", "HOME": "/root"})
    assert secrets.resolve({"a": ["env:DIFY_KEY", "env: no", 1]}) == {"a": ["k", "env: no", 1]}
    with pytest.raises(SecretError, match="config/a/0 names the variable HOME"):
        secrets.resolve({"a": ["env:HOME"]})
    with pytest.raises(SecretError, match="not set"):
        secrets.resolve("env:DIFY_ABSENT")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        # Snapshots.
        ([delta("he"), delta("hello")], [("he", None), ("llo", None)]),
        # Increments with their snapshot.
        ([delta("he", all_content="he"), delta("llo", all_content="hello")], [("he", None), ("llo", None)]),
        # A rewritten text, and one that begins anew.
        ([delta("helo"), delta("hello")], [("helo", None), ("", "hello")]),
        ([delta("first"), delta("second")], [("first", None), ("", "second")]),
        # The end of a stream repeats the text.
        ([delta("hi"), delta("hi", is_final=True)], [("hi", None), ("", None)]),
        ([delta("hi"), delta("")], [("hi", None), ("", None)]),
    ],
)
def test_deltas_become_increments(sent: list[dict], expected: list[tuple]) -> None:
    outbox = results.Outbox("r", 262_144)
    chunks = [one["data"]["chunk"] for result in sent for one in outbox.take(result)]
    assert [(chunk["content"], chunk.get("all_content")) for chunk in chunks] == expected


def completed(content: object | None = None) -> dict:
    given = {} if content is None else {"message": {"role": "assistant", "content": content}}
    return {"run_id": "r", "type": "run.completed", "data": {"finish_reason": "stop", **given}}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        # A steered run: the second answer is a separate message, and so is the last one, which no result follows.
        (
            [delta("first"), delta("first one", is_final=True), delta("second"), delta("second one"), completed()],
            ["first one", "second one"],
        ),
        # The second answer begins with the first.
        ([delta("OK", is_final=True), delta("OK, go"), completed()], ["OK", "OK, go"]),
        ([delta("a", is_final=True), delta("b", all_content="b", is_final=True), completed()], ["a", "b"]),
        # The runner completes the second one itself, or the terminal does.
        ([delta("a", is_final=True), delta("b"), results.message("r", "b"), completed()], ["a", "b"]),
        ([delta("a", is_final=True), delta("b"), completed("b")], ["a", "b"]),
        # The second answer has no deltas.
        ([delta("a", is_final=True), results.message("r", "b"), completed()], ["a", "b"]),
        ([delta("a", is_final=True), completed("b")], ["a", "b"]),
        # Three, and the text of a tool's round.
        ([delta("a", is_final=True), delta("b", is_final=True), delta("c"), completed()], ["a", "b", "c"]),
        # One answer, however often it is marked as final.
        (
            [delta("a"), delta("a", is_final=True), delta("", is_final=True), results.message("r", "a"), completed()],
            ["a"],
        ),
        ([delta("a ", is_final=True), delta("a ", is_final=True), results.message("r", "a"), completed()], ["a"]),
        ([delta("<think>x</think>a", is_final=True), results.message("r", "a"), completed("a")], ["a"]),
        # A run of deltas only has no complete message.
        ([delta("a"), delta("ab", is_final=True), completed()], []),
        ([delta("a", is_final=True), completed("a")], []),
    ],
)
def test_final_delta_ends_its_message(sent: list[dict], expected: list[str]) -> None:
    outbox = results.Outbox("r", 262_144)
    made = [one for result in sent for one in outbox.take(result)]
    contents = [one["data"]["message"]["content"] for one in made if one["type"] == "message.completed"]
    assert contents == expected
    # Each delta adds to its own message: none replaces the one before it.
    assert not any("all_content" in one["data"].get("chunk", {}) for one in made)


def test_message_begins_the_next_text_anew() -> None:
    outbox = results.Outbox("r", 262_144)
    outbox.take(delta("hello"))
    outbox.take(results.message("r", "hello"))
    [again] = outbox.take(delta("hello again"))
    assert again["data"]["chunk"] == {"role": "assistant", "content": "hello again"}


def test_no_line_passes_the_limit() -> None:
    outbox = results.Outbox("r", 4096)
    sent = [
        *outbox.take(delta("a" * 10_000)),
        *outbox.take(delta("b" * 10_000)),
        *outbox.take(results.message("r", "b" * 10_000 + "c" * 5_000)),
        *outbox.take(results.failed("r", "e" * 9_000, "x.y")),
    ]
    lines = [results.wire({**result, "sequence": 1}) for result in sent]
    assert max(map(len, lines)) < 4096
    text = ""
    for result in sent:
        if result["type"] == "message.delta":
            chunk = result["data"]["chunk"]
            text = chunk["all_content"] if "all_content" in chunk else text + chunk["content"]
    assert text == "b" * 10_000 + "c" * 5_000
    assert sent[-1]["data"]["code"] == "x.y"


def test_wire_keeps_text_on_its_line() -> None:
    result = {**delta("a\n\nevent: run.failed\r\n\u2028\ud800"), "sequence": 4}
    frame = results.wire(result)
    assert frame.startswith(b"event: message.delta\nid: 4\ndata: {")
    assert frame.count(b"\n") == 4
    assert b"\r" not in frame
    assert results.wire({**result, "type": "x\ndata: y"}).startswith(b"id: 4\n")


def test_ids_are_formed_as_langbot_forms_them() -> None:
    assert manifest.runner_id("langbot/dify-agent", "default") == "plugin:langbot/dify-agent/default"
    for identity in ("langbot", "a/b/c", "a b/c", "/c", "a/" + "b" * 250):
        with pytest.raises(ValueError, match="no runner id"):
            manifest.runner_id(identity, "default")


def test_manifest_leaves_unknown_names_out() -> None:
    spec = {
        "capabilities": {"streaming": 1, "telepathy": True},
        "permissions": {"models": ["invoke", "train"], "moon": ["land"]},
    }
    component = {"metadata": {"name": "default", "label": {}}, "spec": spec}
    made = manifest.of_component(component, "a/b", None)
    assert made["capabilities"] == {"streaming": True, "interrupt": True, "resumable": True}
    assert made["permissions"] == {
        "models": ["invoke"],
        "artifacts": ["metadata", "read", "create"],
        "state": ["conversation", "actor", "subject", "runner", "binding"],
    }
    assert made["label"] == {"en_US": "default"}


def test_paths_hold_any_key_but_dots() -> None:
    route = Route("GET", "/state/{scope}/{key}")
    assert path_of(route, {"scope": "actor", "key": "a/../b c?"}) == "/state/actor/a%2F..%2Fb%20c%3F"
    for key in ("", ".", ".."):
        with pytest.raises(KeyFaultError):
            path_of(route, {"scope": "actor", "key": key})


def test_calls_about_the_own_run_need_no_conversation() -> None:
    for target, path in [(None, "/run"), ("r", "/run"), ("other", "/runs/other")]:
        payload = {"run_id": "r", "target_run_id": target}
        route = route_of("run_get", payload)
        assert route is not None
        assert path_of(route, payload) == path


def test_unknown_actions_have_no_route() -> None:
    for action in ("run_finalize", "vector_upsert", "get_bots", "get_config_file", "acquire_box"):
        assert route_of(action, {}) is None


def test_message_chains_become_contents() -> None:
    chain = [
        {"type": "At", "target": 7, "display": "Bob"},
        {"type": "Plain", "text": " hi"},
        {"type": "AtAll"},
        {"type": "Face"},
    ]
    assert content_of(chain) == "@Bob hi@all"
    files = [{"type": "File", "name": "a.pdf", "base64": "AA"}, {"type": "Voice", "url": "https://x.test/v"}]
    assert [part["type"] for part in content_of(files)] == ["file_base64", "file_url"]


def test_aborted_reply_streams_send_nothing() -> None:
    aborted = reply_of("reply_stream", {"operation": "abort", "text": "x"})
    assert aborted is not None
    assert aborted.kind == ""
    assert reply_of("call_tool", {"tool_name": "other"}) is None
    assert json.dumps(reply_of("reply_message", {"message_chain": []}))
