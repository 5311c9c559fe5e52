"""Maps addresses to dashboard pages. Parameters are typed and bounded; a page depends on its address alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from reliable_channel import __version__
from reliable_channel.analysis.dashboard import alerts, channel, channels, message, messages, overview, quarantine
from reliable_channel.analysis.dashboard.figures import (
    MESSAGE_FIGURES,
    MESSAGE_TABLES,
    PAGE_FIGURES,
    Figure,
    read_known_shares,
    svg,
)
from reliable_channel.analysis.dashboard.guard import SVG_POLICY, dashboard_access
from reliable_channel.analysis.dashboard.page_cache import PageCache
from reliable_channel.analysis.dashboard.render import Renderer, address
from reliable_channel.analysis.dashboard.sections import section
from reliable_channel.analysis.dashboard.windows import Last, window
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.investigate import find_exact
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault, LocalError, ReliableChannelError
from reliable_channel.transport.http.guard import AccessGuard

_log = logging.getLogger(__name__)

Text = Annotated[str, Query(max_length=8_000)]
OptionalText = Annotated[str | None, Query(max_length=8_000)]
PageNumber = Annotated[int, Query(ge=1, le=10_000)]
Window_ = Annotated[Last, Query()]


def _channel_key(
    pubsub_topic: OptionalText = None, content_topic: OptionalText = None, channel_id: OptionalText = None
) -> ChannelFilter:
    return ChannelFilter(pubsub_topic, content_topic, channel_id)


def _look(
    theme: Literal["light", "dark"] = "light", width: Literal["wide", "narrow"] = "wide"
) -> tuple[bool, Literal["wide", "narrow"]]:
    return theme == "dark", width


ChannelKey_ = Annotated[ChannelFilter, Depends(_channel_key)]
Look = Annotated[tuple[bool, Literal["wide", "narrow"]], Depends(_look)]
"""Whether the page is dark, and how wide it is."""
STATIC = {
    "style.css": "text/css",
    "live.js": "text/javascript",
    "charts.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageContent:
    """A template with its data; ``known`` are the parameters of the address that its links keep."""

    template: str
    values: dict[str, Any]
    known: dict[str, Any]
    status: int = 200


class Answers:
    """Answers requests with pages and pictures, rendered once while their tables stay unchanged."""

    def __init__(self, cache: PageCache, renderer: Renderer) -> None:
        self.cache = cache
        self._renderer = renderer

    def page(self, request: Request, tables: Sequence[str], make: Callable[[TableSnapshot], PageContent]) -> Response:
        """A page, or 304 when the browser has it."""

        def render(lake: TableSnapshot, tag: str) -> tuple[bytes, int]:
            content = make(lake) if lake.has_tables() else PageContent("start.html", {}, {})
            values = {**content.values, "tag": tag, "stopped": self.cache.find_stopped(lake)}
            return self._renderer.page(content.template, request.url.path, content.known, values), content.status

        return self._answer(request, tables, render, "text/html", {})

    def picture(
        self, request: Request, tables: Sequence[str], look: Look, make: Callable[[TableSnapshot], Figure]
    ) -> Response:
        """A picture, or 304 when the browser has it."""
        policy = {"Content-Security-Policy": SVG_POLICY}
        return self._answer(request, tables, lambda lake, _: (svg(make(lake), *look), 200), "image/svg+xml", policy)

    def _answer(
        self,
        request: Request,
        tables: Sequence[str],
        render: Callable[[TableSnapshot, str], tuple[bytes, int]],
        media_type: str,
        headers: Mapping[str, str],
    ) -> Response:
        lake = self.cache.lake()
        tag = self.cache.tag(lake, f"{request.url.path}?{request.url.query}", tables)
        entity = {"ETag": f'"{tag}"'}
        if request.headers.get("if-none-match", "").removeprefix("W/").strip('"') == tag:  # a proxy may call it weak
            return Response(status_code=304, headers=entity)
        body, status = self.cache.get_or_render(tag, lambda: render(lake, tag))
        return Response(body, status, {**headers, **(entity if status == 200 else {})}, media_type)


def create_app(
    paths: PathSettings,
    *,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    refresh_ms: int = 5_000,
    cache: PageCache | None = None,
) -> FastAPI:
    """The dashboard over the tables of ``paths``. ``cache`` is given by tests."""
    cache = cache or PageCache(paths)
    renderer = Renderer(paths.data_dir, refresh_ms)
    # No pages about its calls: they are for people, and FastAPI's load scripts from another host.
    app = FastAPI(title="Reliable channels", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(AccessGuard, rules=dashboard_access(token, allowed_hosts))
    _install_faults(app, renderer)
    answers = Answers(cache, renderer)
    _add_overview(app, answers)
    _add_channels(app, answers)
    _add_messages(app, answers)
    _add_incidents(app, answers)
    _add_pictures(app, answers)
    _add_files(app)
    return app


def _add_overview(app: FastAPI, answers: Answers) -> None:
    @app.get("/")
    def _overview(request: Request, last: Window_ = "24h") -> Response:
        def make(lake: TableSnapshot) -> PageContent:
            span = window(lake, last)
            figures = {
                name: section(lake, tables, partial(make_figure, lake, span))
                for name, (make_figure, tables) in PAGE_FIGURES.items()
            }
            parts = overview.page(lake, span)
            # A picture's address changes when its own tables do.
            tags = {name: answers.cache.tag(lake, name, tables)[:12] for name, (_, tables) in PAGE_FIGURES.items()}
            values = {**parts, "drawn": figures, "tags": tags, "window": span}
            return PageContent("overview.html", values, {"last": last})

        return answers.page(request, overview.TABLES, make)


def _add_channels(app: FastAPI, answers: Answers) -> None:
    @app.get("/channels")
    def _channels(
        request: Request,
        last: Window_ = "24h",
        text: Text = "",
        order: Annotated[channels.Order, Query()] = "missing",
        page: PageNumber = 1,
    ) -> Response:
        def make(lake: TableSnapshot) -> PageContent:
            span = window(lake, last)
            known = {"last": last, "text": text, "order": order, "page": page}
            return PageContent("channels.html", {**channels.page(lake, span, text, order, page), "window": span}, known)

        return answers.page(request, channels.TABLES, make)

    @app.get("/channel")
    def _channel(
        request: Request,
        key: ChannelKey_,
        last: Window_ = "24h",
        verdict: Annotated[messages.VerdictFilter, Query()] = "",
        page: PageNumber = 1,
        missing: PageNumber = 1,
        refetch: PageNumber = 1,
    ) -> Response:
        def make(lake: TableSnapshot) -> PageContent:
            span = window(lake, last)
            numbers = {"page": page, "missing": missing, "refetch": refetch}
            parts = channel.page(lake, key, span, verdict, numbers)
            if parts is None:
                return _not_found("No table tells of this channel.", "It may be older than the tables' retention.")
            known = {**key.query, "last": last, "verdict": verdict, **numbers}
            return PageContent("channel.html", {**parts, "window": span, "key": key}, known)

        return answers.page(request, channel.TABLES, make)


def _add_messages(app: FastAPI, answers: Answers) -> None:
    @app.get("/messages")
    def _messages(
        request: Request,
        q: Text = "",
        last: Window_ = "24h",
        verdict: Annotated[messages.VerdictFilter, Query()] = "",
        cause: Annotated[str, Query(max_length=64)] = "",
        channel: Text = "",
        page: PageNumber = 1,
    ) -> Response:
        def make(lake: TableSnapshot) -> PageContent:
            span = window(lake, last)
            known = {"q": q, "last": last, "verdict": verdict, "cause": cause, "channel": channel, "page": page}
            parts = messages.page(lake, span, q, messages.MessageFilter(verdict, cause, channel), page)
            return PageContent("messages.html", {**parts, "window": span}, known)

        return answers.page(request, messages.TABLES, make)

    @app.get("/message")
    def _message(request: Request, where: ChannelKey_, key: Text = "") -> Response:
        def make(lake: TableSnapshot) -> PageContent:
            matches = find_exact(lake, key, where, 1)
            if not matches:
                return _not_found("No table tells of this message.", "Search for its id: it may be in another channel.")
            span = window(lake, "all")
            values = {**message.page(lake, matches[0]), "window": span, "message": matches[0], "key": where}
            return PageContent("message.html", values, {"key": key, **where.query})

        return answers.page(request, MESSAGE_TABLES, make)


def _add_incidents(app: FastAPI, answers: Answers) -> None:
    @app.get("/quarantine")
    def _quarantine(
        request: Request,
        last: Window_ = "24h",
        reason: Annotated[str, Query(max_length=64)] = "",
        page: PageNumber = 1,
    ) -> Response:
        def make(lake: TableSnapshot) -> PageContent:
            span = window(lake, last)
            known = {"last": last, "reason": reason, "page": page}
            parts = quarantine.page(lake, span, reason, page)
            return PageContent("quarantine.html", {**parts, "window": span, "meanings": quarantine.MEANINGS}, known)

        return answers.page(request, quarantine.TABLES, make)

    @app.get("/alerts")
    def _alerts(request: Request, page: PageNumber = 1) -> Response:
        return answers.page(
            request, alerts.TABLES, lambda lake: PageContent("alerts.html", alerts.page(lake, page), {"page": page})
        )


def _add_pictures(app: FastAPI, answers: Answers) -> None:
    @app.get("/charts/message/{name}.svg")
    def _message_chart(request: Request, name: str, where: ChannelKey_, look: Look, key: Text = "") -> Response:
        def make(lake: TableSnapshot) -> Figure:
            matches = find_exact(lake, key, where, 1)
            if not matches:
                raise HTTPException(404)
            return MESSAGE_FIGURES[name](lake, matches[0])

        if name not in MESSAGE_FIGURES:
            raise HTTPException(404)
        return answers.picture(request, MESSAGE_TABLES, look, make)

    @app.get("/charts/channel/shares.svg")
    def _channel_chart(request: Request, key: ChannelKey_, look: Look, last: Window_ = "24h") -> Response:
        return answers.picture(
            request, channel.TABLES, look, lambda lake: read_known_shares(lake, window(lake, last), key)
        )

    @app.get("/charts/{name}.svg")
    def _chart(request: Request, name: str, look: Look, last: Window_ = "24h") -> Response:
        if name not in PAGE_FIGURES:
            raise HTTPException(404)
        make, tables = PAGE_FIGURES[name]
        return answers.picture(request, tables, look, lambda lake: make(lake, window(lake, last)))


def _add_files(app: FastAPI) -> None:
    @app.get("/static/{name}")
    def _static(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        body = (resources.files("reliable_channel.analysis.dashboard") / "static" / name).read_bytes()
        return Response(body, media_type=STATIC[name], headers={"Cache-Control": "private, max-age=300"})

    @app.get("/favicon.ico")
    def _icon() -> Response:
        return RedirectResponse(address("/static/icon.svg"), 308)


def _not_found(cause: str, remedy: str) -> PageContent:
    return PageContent("fault.html", {"title": "Not found", "cause": cause, "remedy": remedy}, {}, 404)


def _install_faults(app: FastAPI, renderer: Renderer) -> None:
    """Show every fault as a page with one sentence of cause and one of remedy, without a stack trace."""

    def page(request: Request, status: int, title: str, cause: str, remedy: str) -> Response:
        values = {"title": title, "cause": cause, "remedy": remedy}
        return HTMLResponse(renderer.page("fault.html", request.url.path, {}, values), status)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return page(request, error.status_code, "Not found", "There is no such page.", "Start at the overview.")

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        wrong = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())[:500]
        return page(request, 400, "Wrong address", f"The address says something else: {wrong}.", "Use the filters.")

    @app.exception_handler(ReliableChannelError)
    async def _ours(request: Request, error: ReliableChannelError) -> Response:
        status = 400 if isinstance(error, LocalError) else 503
        title = "The tables cannot be read" if isinstance(error, EnvironmentFault) else "This cannot be shown"
        return page(request, status, title, error.cause, error.remedy)

    @app.exception_handler(Exception)
    async def _unforeseen(request: Request, error: Exception) -> Response:
        _log.exception("%s failed", request.url.path)
        return page(request, 500, "A fault of the dashboard", "Something went wrong here.", "Its log has the details.")
