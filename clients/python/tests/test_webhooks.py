import base64

import pytest
import standardwebhooks

from runnel import SeenIds, SignatureError, Webhook

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
OTHER = "whsec_" + base64.b64encode(b"x" * 32).decode()
NOW = 1795291200
ID = "list_01a1ffb1ba007c3a9b1e5f0c2a7d4e61"
BODY = b'{"action":"list_runners"}'
# The vector of crates/secrets/src/signature.rs.
TAG = "v1,dSOfZVEacqpM+fy6+hUiHSOnD7J5vpwvq1QHcy4M8vs="
SIGNED = {"webhook-id": ID, "webhook-timestamp": str(NOW), "webhook-signature": TAG}


def test_matches_published_signature_vector() -> None:
    assert Webhook(SECRET).sign(ID, BODY, NOW) == SIGNED
    assert Webhook(SECRET).verify(SIGNED, BODY, NOW) == NOW


def test_verifies_requests_with_empty_body() -> None:
    headers = Webhook(SECRET).sign("list_1", b"", NOW)
    assert Webhook(SECRET).verify(headers, b"", NOW) == NOW


def test_agrees_with_the_standard_library() -> None:
    headers = Webhook(SECRET).sign("m", BODY)
    assert standardwebhooks.Webhook(SECRET).verify(BODY.decode(), headers) == {"action": "list_runners"}


@pytest.mark.parametrize(
    ("changed", "body", "now"),
    [
        ({}, b"", NOW),
        ({"webhook-id": "list_2"}, BODY, NOW),
        ({"webhook-id": ""}, BODY, NOW),
        ({"webhook-id": f"{ID}.1"}, BODY, NOW),
        ({"webhook-timestamp": str(NOW - 1)}, BODY, NOW),
        ({"webhook-timestamp": "soon"}, BODY, NOW),
        ({"webhook-timestamp": f"+{NOW}"}, BODY, NOW),
        ({"webhook-signature": ""}, BODY, NOW),
        ({"webhook-signature": TAG[:-4]}, BODY, NOW),
        ({"webhook-signature": TAG.replace("v1,", "v1a,")}, BODY, NOW),
        ({"webhook-signature": "v1,größer"}, BODY, NOW),
        ({}, BODY, NOW + 301),
        ({}, BODY, NOW - 301),
    ],
)
def test_rejects_forged_old_and_early_requests(changed: dict[str, str], body: bytes, now: int) -> None:
    with pytest.raises(SignatureError):
        Webhook(SECRET).verify({**SIGNED, **changed}, body, now)


def test_accepts_both_secrets_during_rotation() -> None:
    several = {**SIGNED, "webhook-signature": f"v1a,xyz v1,AAAA {TAG} v1,!!"}
    assert Webhook(f"{OTHER} {SECRET}").verify(several, BODY, NOW) == NOW
    with pytest.raises(SignatureError):
        Webhook(OTHER).verify(several, BODY, NOW)


def test_header_names_have_any_case() -> None:
    upper = {name.title(): value for name, value in SIGNED.items()}
    assert Webhook(SECRET).verify(upper, BODY, NOW) == NOW


@pytest.mark.parametrize("text", ["", "  ", "whsec_", "whsec_c2hvcnQ=", "whsec_!!", SECRET.removeprefix("whsec_")])
def test_refuses_secrets_without_quoting_them(text: str) -> None:
    with pytest.raises(ValueError, match="secret") as raised:
        Webhook(text)
    assert not text.strip() or text not in str(raised.value).replace("whsec_ and", "")


def test_ids_count_once_within_ten_minutes() -> None:
    seen = SeenIds()
    assert seen.add("a", NOW, NOW)
    assert not seen.add("a", NOW, NOW + 600)
    assert seen.add("b", NOW + 601, NOW + 601)
    assert seen.add("a", NOW + 601, NOW + 601)


def test_full_memory_refuses_requests_as_old_as_evicted() -> None:
    seen = SeenIds(capacity=2)
    assert all(seen.add(name, NOW + at, NOW + 2) for at, name in enumerate(("a", "b", "c")))
    assert not seen.add("a", NOW, NOW + 2)
    assert not seen.add("new", NOW, NOW + 2)
    assert seen.add("new", NOW + 3, NOW + 3)
