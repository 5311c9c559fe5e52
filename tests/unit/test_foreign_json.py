"""Half a surrogate pair in JSON that others write spoils nothing that is read with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core import foreign_json
from reliable_channel.transport.bridge_health import read_bridge_health
from reliable_channel.transport.dispatch_results import read_result
from reliable_channel.transport.http.client import HttpResponse

HALF = "\ud83d"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=[])), inner),
)


@given(values)
def test_whatever_json_holds_can_be_written_as_utf_8(value: object) -> None:
    found = foreign_json.loads(json.dumps(value).encode())
    json.dumps(found, ensure_ascii=False).encode()
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert found == value


def test_only_the_half_is_replaced() -> None:
    assert foreign_json.loads(json.dumps({"a": [f"x{HALF}y", "😀", 1.5]}).encode()) == {"a": ["x\ufffdy", "😀", 1.5]}


@pytest.mark.parametrize("text", [b"", b"{", b'"\xff"', b"[" * 100_000])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        foreign_json.loads(text)


def test_a_node_s_answer_a_dispatch_result_and_a_bridge_s_health_can_be_stored() -> None:
    answer = HttpResponse(200, json.dumps({"pubsubTopic": HALF}).encode()).json()
    result = read_result(
        json.dumps({"request_id": "r", "status": "failed", "at_ms": 1, "reason": "refused", "detail": HALF}).encode()
    )
    health = read_bridge_health(
        json.dumps({"status": "health", "bridge": "b", "state": "Healthy", "detail": HALF, "at_ms": 1}).encode()
    )
    assert answer == {"pubsubTopic": "\ufffd"}
    assert result is not None
    assert result.detail == "\ufffd"
    assert health is not None
    assert health.health.detail == "\ufffd"


@pytest.mark.parametrize("value", ["0", "[]", '"a":0'])
def test_as_much_as_a_page_may_hold_of_tiny_values_is_refused_before_it_is_parsed(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end = ("{", "}") if ":" in value else ("[", "]")
    text = (begin + ",".join([value] * 1_000_000) + end).encode()
    monkeypatch.setattr(foreign_json.json, "loads", lambda _: pytest.fail("it is parsed"))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="more than"):
        foreign_json.loads(text)
    assert HttpResponse(200, text).json() is None


@pytest.mark.parametrize("topic", ["," * 150_000, '",' * 75_000, '\\",\\\\' * 30_000, "," * 149_999 + "\\"])
def test_the_texts_of_a_stranger_cost_no_envelope_beside_it(topic: str) -> None:
    """A hundred envelopes of 150 KiB each, which is what nodes relay, with commas wherever a stranger can put some."""
    one = {"message": {"payload": "", "contentTopic": topic, "meta": "AA", "timestamp": 1}, "pubsubTopic": "," * 200}
    page = {"messages": [one] * 100}
    assert foreign_json.loads(json.dumps(page).encode()) == page


def test_a_text_without_an_end_is_searched_once() -> None:
    with pytest.raises(ValueError, match="Unterminated"):  # else this test does not end
        foreign_json.loads(b'["' + b'\\",' * 1_000_000)


@given(values, st.integers(0, 40))
def test_the_values_are_counted_whatever_the_texts_hold(value: object, most: int) -> None:
    text = json.dumps(value)

    def commas(inner: object) -> int:
        if isinstance(inner, list | dict):
            parts = list(inner.values() if isinstance(inner, dict) else inner)
            return max(0, len(parts) - 1) + sum(commas(part) for part in parts)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign_json, "MAX_VALUES", most)
        if commas(json.loads(text)) > most:
            with pytest.raises(ValueError, match="more than"):
                foreign_json.loads(text.encode())
        else:
            foreign_json.loads(text.encode())
