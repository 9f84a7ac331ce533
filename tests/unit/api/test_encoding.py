"""What caches may do with an answer, and when it is compressed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from headrace_api.encoding import accepts_gzip, encoded
from headrace_core.registration.routes import ABSENT, Response
from tests.support.status_api import fixture
from tests.unit.api.test_app import Asker

LONG = ["device"] * 500


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("GZIP", True), ("x-gzip", True), ("gzip; q=1.0", True),
     ("", False), ("br", False), ("gzip;q=0", False), ("*;q=0", False), ("gzip;q=0, *", False), ("gzip;q=x", False)],
)  # fmt: skip
def test_only_who_accepts_gzip_gets_it(accept: str, wanted: bool) -> None:
    assert accepts_gzip(accept) is wanted
    answer = encoded(Response(200, {}, LONG), accept)
    assert ("Content-Encoding" in answer.headers, answer.headers["Vary"]) == (wanted, "Accept-Encoding")
    body = answer.body or b""
    assert json.loads(gzip.decompress(body) if wanted else body) == LONG


def test_what_is_short_or_has_a_strong_tag_is_not_compressed() -> None:
    for answer in (Response(200, {}, ["x"]), Response(200, {"ETag": '"1"'}, LONG), Response(204, {}, ABSENT)):
        assert "Content-Encoding" not in encoded(answer, "gzip").headers
    assert "Content-Encoding" in encoded(Response(200, {"ETag": 'W/"1"'}, LONG), "gzip").headers


async def test_documents_may_be_kept_and_asked_for_lists_are_of_the_moment(tmp_path: Path) -> None:
    messages = [(n, f"te/device/d{n:03}//", {"@type": "child-device"}) for n in range(30)]
    api = Asker(fixture(tmp_path, messages))
    for path, words in (
        ("/te/v1/entities/device/d001", "no-cache"), ("/te/v1/registrations/device/d001", "no-cache"),
        ("/te/v1/entities", "no-store"), ("/te/v1/entities/device/nobody", "no-store"), ("/v1/status", "no-store"),
        ("/openapi.json", "no-cache"), ("/metrics", "no-store"), ("/readyz", "no-store"), ("/", "no-store"),
    ):  # fmt: skip
        assert (await api.ask(path)).headers["cache-control"] == words, path
    for path in ("/te/v1/entities", "/te/v1/registrations", "/openapi.json", "/metrics", "/"):
        plain, small = await api.ask(path, accept_encoding="identity"), await api.ask(path, accept_encoding="gzip")
        assert (small.headers["content-encoding"], small.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert "content-encoding" not in plain.headers
        if path != "/metrics":
            assert small.text == plain.text
        assert int(small.headers["content-length"]) < int(plain.headers["content-length"])
