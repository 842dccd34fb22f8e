"""The OpenAPI 3.1 document of a gateway's HTTP interface, served at `GET /openapi.json`.

Requests are described by the declarations that check them (see `invocation.py`).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from shoal.platform.invocation import RUN_SCHEMA, StartRequest, WarmUpRequest, schemas

_ERRORS = {
    "400": "The request is invalid; `error` says why.",
    "401": "The token is missing or wrong.",
    "403": "The token belongs to another run.",
    "404": "There is nothing at this path.",
    "408": "The request took too long to arrive.",
    "413": "The request has too many bytes.",
    "414": "The path is too long.",
    "429": "Too many requests, connections or waiting workers; `Retry-After` says when to retry.",
    "431": "The headers are too long.",
}
_RUN = {"name": "run", "in": "path", "required": True, "schema": RUN_SCHEMA}


def description() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shoal gateway", "version": "1"},
        "security": [{"token": []}],
        "paths": {
            "/job": {"post": _post("Start workers of a run.", StartRequest)},
            "/fanout": {"post": _post("Start many workers in the background.", StartRequest)},
            "/warmup": {"post": _post("Prepare sandboxes for workers of a run.", WarmUpRequest)},
            "/status": {"get": _get("What the gateway is doing.")},
            "/memory/{nonce}": {
                "parameters": [_RUN | {"name": "nonce"}],
                "get": _get("Whether workers see what a client's probe shows and names."),
            },
            "/metrics": {"get": _get("The status in Prometheus' text format.", "text/plain")},
            "/openapi.json": {"get": _get("This document.")},
            "/runs/{run}": {
                "parameters": [_RUN],
                "get": _get("Whether a worker of the run is running or waits for a sandbox."),
                "delete": _get("Stop the run's workers."),
            },
            "/runs/{run}/logs": {
                "parameters": [_RUN],
                "get": _get("What the run's user code has printed."),
            },
        },
        "components": {
            "schemas": schemas((StartRequest, WarmUpRequest)),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(summary: str, request: type[Struct]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{request.__name__}"}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "requestBody": body, "responses": _responses("202")}


def _get(summary: str, media_type: str = "application/json") -> dict[str, Any]:
    return {"summary": summary, "responses": _responses("200", media_type)}


def _responses(success: str, media_type: str = "application/json") -> dict[str, Any]:
    answers: dict[str, Any] = {success: {"description": "Success.", "content": {media_type: {}}}}
    for status, text in _ERRORS.items():
        answers[status] = {"description": text, "content": {"application/json": {}}}
    return answers
