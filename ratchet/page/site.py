"""The web page of a checkout: versions, comparison, runs, episodes and alerts. It reads; with a token it also decides.

Templates and assets are this package's own; a page loads nothing from anywhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from markupsafe import Markup
from sqlalchemy.exc import DBAPIError

from ratchet.errors import RatchetError
from ratchet.page import site_episodes, site_runs, site_versions
from ratchet.page.environment import TEMPLATES, environment
from ratchet.page.guard import REPORT_POLICY, Guard, form_of, holds
from ratchet.page.shelf import Shelf
from ratchet.store.approvals import answer
from ratchet.store.persons import promote, rollback
from ratchet.store.queries import PANELS

ASSETS = {"report.css": "text/css", "site.css": "text/css", "site.js": "text/javascript", "mark.svg": "image/svg+xml"}
SECTIONS = (
    ("versions", "/", "Versions"),
    ("compare", "/compare", "Compare"),
    ("runs", "/runs", "Runs"),
    ("episodes", "/episodes", "Episodes"),
    ("alerts", "/alerts", "Alerts"),
)
UNKNOWN = 404


def create(shelf: Shelf, token: str | None = None) -> FastAPI:
    """The application. Without a `token` nothing can be decided."""
    app = FastAPI(title="Ratchet", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard)

    def page(name: str, section: str, view: dict[str, Any] | None, status: int = 200) -> HTMLResponse:
        if view is None:
            raise HTTPException(UNKNOWN)
        text = environment().get_template(f"{name}.html.j2").render(
            **view, section=section, sections=SECTIONS, asset=asset, shelf=shelf, decides=token is not None, link=link, option=site_versions.option
        )
        return HTMLResponse(text.encode("utf-8", "replace"), status)

    def trouble(title: str, text: str, status: int) -> HTMLResponse:
        return page("problem", "", {"title": title, "text": text}, status)

    @app.exception_handler(RatchetError)
    async def refused(request: Request, error: RatchetError) -> HTMLResponse:
        return trouble("That did not work", str(error), UNKNOWN if request.method == "GET" else 400)

    @app.exception_handler(DBAPIError)
    async def away(request: Request, error: DBAPIError) -> HTMLResponse:
        text = "Versions, runs and alerts come from files and still open; episodes come back with the database. Nothing is lost."
        return trouble("The index cannot be reached", text, 503)

    @app.exception_handler(HTTPException)
    @app.exception_handler(UNKNOWN)
    async def missing(request: Request, error: Exception) -> HTMLResponse:
        status = getattr(error, "status_code", UNKNOWN)
        return trouble("There is no such page", "What was here may have been removed, or never was.", status)

    @app.get("/")
    def versions(line: str | None = None) -> HTMLResponse:
        return page("versions", "versions", site_versions.versions(shelf, line))

    @app.get("/versions/{version}")
    def version(version: str) -> HTMLResponse:
        return page("version", "versions", site_versions.version(shelf, version) | {"wrong": None, "given": {}})

    @app.get("/compare")
    def compare(request: Request) -> HTMLResponse:
        query = request.query_params
        pair = [*query.getlist("v"), None, None]  # two boxes ticked in the list of versions, the newer one first
        a, b = query.get("a") or pair[1], query.get("b") or pair[0]
        panel = query.get("panel") if query.get("panel") in PANELS else "test"
        return page("compare", "compare", site_versions.compare(shelf, a, b, str(panel)))

    @app.get("/runs")
    def runs() -> HTMLResponse:
        return page("runs", "runs", site_runs.runs(shelf))

    @app.get("/runs/{run_id}")
    def run(run_id: str) -> HTMLResponse:
        return page("run", "runs", site_runs.run(shelf, run_id))

    @app.get("/runs/{run_id}/report.html")
    def report(run_id: str) -> Response:
        return document(site_runs.page_of(shelf, run_id, "report"))

    @app.get("/runs/{run_id}/rounds/{k}/{what}.html")
    def round_page(run_id: str, k: str, what: str) -> Response:
        return document(site_runs.page_of(shelf, run_id, what, k))

    @app.get("/monitor/{look}/report.html")
    def monitor(look: str) -> Response:
        return document(site_runs.monitor_page(shelf, look))

    @app.get("/episodes")
    def episodes(request: Request) -> HTMLResponse:
        return page("episodes", "episodes", site_episodes.episodes(shelf, request.query_params))

    @app.get("/episodes/{episode_id}")
    def episode(episode_id: str, run: str | None = None) -> HTMLResponse:
        return page("episode", "episodes", site_episodes.episode(shelf, episode_id, run))

    @app.get("/alerts")
    def alerts(kind: str | None = None) -> HTMLResponse:
        return page("alerts", "alerts", site_runs.alerts(shelf, kind))

    @app.get("/assets/{name}")
    def assets(name: str) -> Response:
        if name not in ASSETS:
            raise HTTPException(UNKNOWN)
        kept = {"cache-control": "public, max-age=31536000, immutable"}
        return Response((TEMPLATES / name).read_bytes(), media_type=ASSETS[name], headers=kept)

    @app.post("/versions/{version}/promote")
    async def make_champion(version: str, request: Request) -> Response:
        decide = lambda form: promote(shelf.root, version, form.get("reason", ""), _by(form, shelf), form.get("line") or None)
        return await decided(version, request, decide)

    @app.post("/versions/{version}/rollback")
    async def roll_back(version: str, request: Request) -> Response:
        decide = lambda form: rollback(shelf.root, form.get("reason", ""), _by(form, shelf), form.get("line") or None, form.get("to") or None)
        return await decided(version, request, decide)

    @app.post("/versions/{version}/answer")
    async def answered(version: str, request: Request) -> Response:
        def decide(form: dict[str, str]) -> dict[str, Any]:
            approved = form.get("answer") == "approve"
            answer(shelf.root, version, approved, form.get("reason", ""), _by(form, shelf), form.get("line") or None)
            return {"champion": version}  # whose page says what came of it

        return await decided(version, request, decide)

    async def decided(version: str, request: Request, decide: Callable[[dict[str, str]], dict[str, Any]]) -> Response:
        """Takes a decision where the form holds the token; else shows the version again with what was wrong."""
        form = await form_of(request)
        if token is None:
            return trouble("This page only reads", "Start it with `ratchet ui --decide` to promote and roll back here.", 403)
        if not await holds(token, form.pop("token", "")):
            return await again(version, form, "That is not the token that `ratchet ui` printed.", 403)
        try:
            champion = (await run_in_threadpool(decide, form))["champion"]
        except RatchetError as error:
            return await again(version, form, str(error), 400)
        return RedirectResponse(link("versions", champion), 303)

    async def again(version: str, form: dict[str, str], wrong: str, status: int) -> HTMLResponse:
        view = await run_in_threadpool(site_versions.version, shelf, version)
        return page("version", "versions", view | {"wrong": wrong, "given": form}, status)

    return app


def link(*parts: object, **query: object) -> str:
    """An address of the page, every part of it quoted."""
    given = {key: str(value) for key, value in query.items() if value is not None}
    return "/" + "/".join(quote(str(part), safe="") for part in parts) + (f"?{urlencode(given)}" if given else "")


@lru_cache(maxsize=16)
def asset(name: str) -> Markup:
    """The address of an asset; another one as soon as its bytes change."""
    return Markup(f"/assets/{name}?{hashlib.sha256((TEMPLATES / name).read_bytes()).hexdigest()[:8]}")


def document(path: Path | None) -> Response:
    """A page that a stage wrote, which has no more rights than a picture."""
    if path is None:
        raise HTTPException(UNKNOWN)
    return FileResponse(path, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})


def _by(form: dict[str, str], shelf: Shelf) -> str:
    return form.get("by", "").strip() or shelf.by
