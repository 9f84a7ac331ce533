"""The page for people: who is registered, who is not and why, and the counters. Plain HTML, made here.

It shows what the calls of registration.md 13 answer, asked through the same door. No script, nothing from elsewhere,
every table with caption and heads; a page of 100 each, with links to the next ones.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlencode

from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import Request, Response

ITEMS = 100
Ask = Callable[[Request], Response]
MEDIA_TYPE = "text/html; charset=utf-8"
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; }
a.skip:not(:focus) { position: absolute; left: -999rem; }
nav a { display: inline-block; padding: .25rem .75rem .25rem 0; }
nav a[aria-current] { font-weight: bold; }
.scroll { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; font-weight: bold; padding: .5rem 0; }
th, td { border-bottom: 1px solid GrayText; padding: .25rem 1rem .25rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.notice { border-left: .3rem solid; padding: .5rem 1rem; }
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Section(NamedTuple):
    """One table of statuses; `name` is also the parameter with its cursor."""

    name: str
    title: str
    states: str
    heads: tuple[str, ...]
    row: Callable[[str, Mapping[str, Any]], tuple[str, ...]]
    none: str


def page(ask: Ask, query: str, reason: str) -> str:
    """The page for a query `root=`, `<section>=<cursor>`; `reason`: why the service is not ready, empty if it is.

    Raises Refusal `not_found` for a root that is not configured.
    """
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    status = ask(Request("GET", "/v1/status")).body
    roots = list(status["config"]["roots"])
    root = given.get("root", roots[0] if roots else "")
    nav = _nav(roots, root)
    if root not in roots:
        raise Refusal("not_found", f"there is no root {root!r}")
    if reason:
        return _html(root, nav, [notice(f"Not ready: {reason}")])
    sections = [_section(ask, root, section, given) for section in SECTIONS]
    parts = [*sections, _totals(root, status["roots"][root]), _counters(status["counters"])]
    return _html(root, nav, parts)


def notice(words: str) -> str:
    return f'<p class="notice" role="status">{escape(words)}</p>'


def _html(root: str, nav: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>headrace: {escape(root)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">To the content</a>\n<header><h1>headrace</h1></header>\n'
        f'{nav}\n<main id="main">\n'
        + "\n".join(parts)
        + '\n</main>\n<footer><p><a href="/v1/status">Totals as JSON</a>, <a href="/openapi.json">OpenAPI</a>, '
        '<a href="/metrics">metrics</a></p></footer>\n</body>\n</html>\n'
    )


def _nav(roots: Sequence[str], root: str) -> str:
    links = "".join(_root(name, here=name == root) for name in roots)
    return f'<nav aria-label="Roots">{links}</nav>'


def _root(name: str, *, here: bool) -> str:
    current = ' aria-current="page"' if here else ""
    return f'<a href="/?{escape(urlencode({"root": name}))}"{current}>{escape(name)}</a>'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML already. The first cell of a row is its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(map(_cell, rest))}</tr>\n' for first, *rest in rows
    )  # fmt: skip
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table><caption>'
        f"{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    return f'<td class="number">{text}</td>' if text.isdigit() else f"<td>{text}</td>"


def _totals(root: str, totals: Mapping[str, Any]) -> str:
    rows = [(escape(f"registered: {kind}"), str(count)) for kind, count in totals["entities"].items()]
    rows += [("registered automatically", str(totals["automatic"])), ("pending", str(totals["pending"]))]
    rows += [(escape(f"cached: {name.replace('_', ' ')}"), str(count)) for name, count in totals["cache"].items()]
    rows += [(escape(f"dropped: {reason}"), str(count)) for reason, count in sorted(totals["dropped"].items())]
    return table(f"Totals of {root}", ("what", "number"), rows)


def _counters(counters: Mapping[str, Mapping[str, int]]) -> str:
    rows = [(escape(f"{stage}: {name}"), str(count)) for stage, of in counters.items() for name, count in of.items()]
    return (
        f"<details><summary>Counters of all roots</summary>{table('Counters', ('counter', 'number'), rows)}</details>"
    )


def _section(ask: Ask, root: str, section: Section, given: Mapping[str, str]) -> str:
    parameters = {"state": section.states, "limit": str(ITEMS)}
    if section.name in given:
        parameters["cursor"] = given[section.name]
    answer = ask(Request("GET", f"/{quote(root, safe='')}/v1/registrations?{urlencode(parameters)}"))
    if answer.status != 200:
        return notice(f"{section.title}: {answer.body['detail']}")
    items, following = answer.body["items"], answer.body["next"]
    if not items:
        return f"<p>{escape(section.none)}</p>"
    shown = table(section.title, section.heads, (section.row(root, item) for item in items))
    if following is None:
        return shown
    link = urlencode({"root": root} | {section.name: following})
    return f'{shown}<p><a href="/?{escape(link)}">Next {ITEMS}: {escape(section.title)}</a></p>'


def _link(root: str, item: Mapping[str, Any]) -> str:
    path = quote(f"/{root}/v1/registrations/{item['@topic-id']}", safe="/")
    return f'<a href="{escape(path)}">{escape(item["@topic-id"])}</a>'


def _time(at: int | None) -> str:
    """Milliseconds since 1970 as a time in UTC."""
    if at is None:
        return ""
    if at <= 0:
        return "from the start"
    try:
        text = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(at)
    return f'<time datetime="{text.replace(" ", "T")}">{text}</time>'


def _error(item: Mapping[str, Any]) -> str:
    error = item.get("last_error")
    return f"{escape(error['reason'])}, {_time(error['receipt_time'])}" if error else ""


def why(item: Mapping[str, Any]) -> str:
    """Why an id is pending, in words."""
    if not item["registration"]:
        words = "nobody has registered it; its data waits"
    elif item["cycle"]:
        words = f"its ancestors form a cycle: {', '.join(item['missing'])}"
    else:
        words = f"waits for {', '.join(item['missing']) or item['waiting_for']}"
    error = item.get("last_error")
    return escape(f"{words}; last refusal: {error['reason']}" if error else words)


def _pending(root: str, item: Mapping[str, Any]) -> tuple[str, ...]:
    cached = item["cached"]
    return (
        _link(root, item), why(item), f"{item['age_ms'] // 1000} s", _time(item["expires_at"]),
        f"{cached['telemetry']} telemetry, {cached['metadata']} metadata, {cached['bytes']} bytes",
    )  # fmt: skip


def _registered(root: str, item: Mapping[str, Any]) -> tuple[str, ...]:
    names = (escape(item.get(name, "")) for name in ("@type", "@id", "@parent", "@health"))
    return _link(root, item), *names, "yes" if item["automatic"] else "no", _time(item["since"]), _error(item)


def _other(root: str, item: Mapping[str, Any]) -> tuple[str, ...]:
    return _link(root, item), escape(item["state"]), _time(item["since"]), _error(item)


SECTIONS = (
    Section("pending", "Pending: not registered yet", "pending", ("entity", "why", "age", "forgotten at", "cached"),
            _pending, "Nobody is pending."),
    Section("registered", "Registered", "registered",
            ("entity", "type", "external id", "parent", "health", "automatic", "since", "last refusal"), _registered,
            "Nobody is registered."),
    Section("other", "Refused, expired, removed", "unknown,expired,removed",
            ("entity", "state", "since", "last refusal"), _other, "Nobody was refused, expired or removed lately."),
)  # fmt: skip
