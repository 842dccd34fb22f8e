"""The description of a gateway's HTTP interface, in OpenAPI 3.1, served at `GET /openapi.json`.

The limits in it are those that the gateway enforces: both are read from the same tables.
"""

from __future__ import annotations

from typing import Any

from shoal.platform.base import MOST_WARM, invocation_schema, run_schema, workers_schema

_ERRORS = {
    "400": "The request isn't what it should be; `error` says what is wrong.",
    "401": "The token is missing or wrong.",
    "403": "The token is that of another run.",
    "404": "There is no such thing here.",
    "408": "The request took too long to arrive.",
    "413": "The request has too many bytes.",
    "414": "The path is too long.",
    "429": "Too many requests, connections or waiting workers; `Retry-After` says for how long.",
    "431": "The headers are too long.",
}
_RUN = {"name": "run", "in": "path", "required": True, "schema": run_schema()}
_INVOCATION = {"$ref": "#/components/schemas/Invocation"}


def description() -> dict[str, Any]:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "A gateway of Shoal", "version": "1"},
        "security": [{"token": []}],
        "paths": {
            "/job": {"post": _post("Start workers.", {"type": "array", "items": _INVOCATION})},
            "/fanout": {"post": _post("Have many workers like one started.", _FAN_OUT)},
            "/warmup": {"post": _post("Have sandboxes ready for workers like one.", _WARMUP)},
            "/status": {"get": _get("What the gateway is doing.")},
            "/metrics": {"get": _get("The same for Prometheus.", "text/plain")},
            "/openapi.json": {"get": _get("This description.")},
            "/runs/{run}": {
                "parameters": [_RUN],
                "get": _get("Whether a worker of the run is at work or waits to be."),
                "delete": _get("Stop the run's workers."),
            },
            "/runs/{run}/logs": {
                "parameters": [_RUN],
                "get": _get("What the run's user code has printed."),
            },
        },
        "components": {
            "schemas": {"Invocation": invocation_schema()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_FAN_OUT = {
    "type": "array",
    "prefixItems": [_INVOCATION, workers_schema()],
    "minItems": 2,
    "maxItems": 2,
}
_WARMUP = {
    "type": "array",
    "prefixItems": [{"type": "integer", "minimum": 0, "maximum": MOST_WARM}, _INVOCATION],
    "minItems": 2,
    "maxItems": 2,
}


def _post(summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "requestBody": body, "responses": _responses("202")}


def _get(summary: str, kind: str = "application/json") -> dict[str, Any]:
    return {"summary": summary, "responses": _responses("200", kind)}


def _responses(success: str, kind: str = "application/json") -> dict[str, Any]:
    answers: dict[str, Any] = {success: {"description": "It is done.", "content": {kind: {}}}}
    for status, text in _ERRORS.items():
        answers[status] = {"description": text, "content": {"application/json": {}}}
    return answers
