"""Who may look at the dashboard, and what a browser is allowed to do with its pages."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.dashboard.serve import serve
from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import ConfigurationError

TOKEN = "a-long-enough-token"
Make = Callable[..., TestClient]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """``make(…)``: a client of a dashboard over no tables."""

    def client(**options: object) -> TestClient:
        return TestClient(create_app(PathSettings(data_dir=str(tmp_path)), **options), base_url="http://localhost")  # type: ignore[arg-type]

    return client


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8648", "[::1]:8648", "LOCALHOST"])
def test_loopback_names_are_served(make: Make, host: str) -> None:
    assert make().get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example"])
def test_other_names_are_refused(make: Make, host: str) -> None:
    answer = make().get("/", headers={"Host": host})
    assert answer.status_code == 403
    assert "Reliable channels" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Site": "anything else"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_page_of_another_site_cannot_make_the_dashboard_work(make: Make, headers: dict[str, str]) -> None:
    for path in ("/", "/messages", "/charts/lag.svg"):
        answer = make().get(path, headers=headers)
        assert (answer.status_code, "other sites" in answer.text) == (403, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Origin": "http://localhost"},
    ],
)
def test_an_address_a_link_and_our_own_pages_are_served(make: Make, headers: dict[str, str]) -> None:
    assert make().get("/", headers=headers).status_code == 200


def test_names_can_be_allowed(make: Make) -> None:
    client = make(allowed_hosts=("Dash.example",))
    assert client.get("/", headers={"Host": "dash.example:80"}).status_code == 200
    assert make(allowed_hosts=("*",)).get("/", headers={"Host": "any"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, basic("wrong"), basic(TOKEN + "x"), {"Authorization": "Basic ???"}, {"Authorization": f"Digest {TOKEN}"}],
)
def test_without_the_token_nothing_is_shown(make: Make, headers: dict[str, str]) -> None:
    for path in ("/", "/static/style.css", "/charts/lag.svg", "/nowhere"):
        answer = make(token=TOKEN).get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize("headers", [basic(TOKEN), {"Authorization": f"Bearer {TOKEN}"}])
def test_with_the_token_it_is_as_a_password_or_bearer(make: Make, headers: dict[str, str]) -> None:
    assert make(token=TOKEN).get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(make: Make, method: str) -> None:
    assert make().request(method, "/").status_code == 405


@pytest.mark.parametrize("path", ["/", "/static/live.js", "/nowhere", "/?last=x"])
def test_every_answer_allows_nothing_but_our_own_files(make: Make, path: str) -> None:
    headers = make().get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "private" in headers["cache-control"]
    assert "access-control-allow-origin" not in headers


def test_off_loopback_it_does_not_start_without_a_token() -> None:
    with pytest.raises(ConfigurationError, match="RELIABLE_CHANNEL__DASHBOARD__TOKEN"):
        serve(load("local", dashboard={"host": "0.0.0.0", "port": 0}), print)  # noqa: S104


def test_the_token_is_a_secret_and_not_short() -> None:
    assert TOKEN not in load("local", dashboard={"token": TOKEN}).to_yaml()
    with pytest.raises(ConfigurationError, match=r"dashboard\.token"):
        load("local", dashboard={"token": "short"})
