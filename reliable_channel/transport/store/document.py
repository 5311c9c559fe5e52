"""Provides the OpenAPI document of the store server, written by hand because its responses imitate another
program's."""

from __future__ import annotations

from typing import Any

from reliable_channel.transport.store.parameters import PARAMETERS

_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_HASH = {"type": "string", "pattern": "^0x[0-9a-f]{64}$", "description": "message hash (14/WAKU2-MESSAGE)"}
_BASE64 = {"type": "string", "format": "byte"}
_SCHEMAS: dict[str, Any] = {
    "StoredMessage": {
        "type": "object",
        "required": ["payload", "contentTopic", "version", "ephemeral"],
        "properties": {
            "payload": {**_BASE64, "description": "standard base64"},
            "contentTopic": {"type": "string"},
            "version": {"type": "integer", "format": "int64"},
            "timestamp": {
                "type": "integer",
                "format": "int64",
                "description": "Unix ns by the sender's clock; absent when it gave none. JavaScript numbers cannot "
                "hold it: parse it as a BigInt.",
            },
            "meta": {**_BASE64, "description": "at most 64 bytes"},
            "ephemeral": {"type": "boolean"},
        },
    },
    "StoreEntry": {
        "type": "object",
        "required": ["messageHash"],
        "description": "`message` and `pubsubTopic` are there with `includeData` only.",
        "properties": {
            "messageHash": _HASH,
            "message": {"$ref": "#/components/schemas/StoredMessage"},
            "pubsubTopic": {"type": "string"},
        },
    },
    "StoreAnswer": {
        "type": "object",
        "required": ["requestId", "statusCode", "statusDesc", "messages"],
        "properties": {
            "requestId": {"type": "string"},
            "statusCode": {"type": "integer", "description": "200, or 300 when a named peer could not answer"},
            "statusDesc": {"type": "string"},
            "messages": {"type": "array", "items": {"$ref": "#/components/schemas/StoreEntry"}},
            "paginationCursor": {**_HASH, "description": "`cursor` of the next page; absent on the last one"},
        },
    },
    "StoreHealth": {
        "type": "object",
        "required": ["nodeHealth", "connectionStatus", "protocolsHealth"],
        "properties": {
            "nodeHealth": {"type": "string", "enum": ["READY", "NOT_READY"]},
            "connectionStatus": {"type": "string"},
            "protocolsHealth": {
                "type": "array",
                "items": {"type": "object", "additionalProperties": {"type": "string"}},
                "description": "one protocol each; `desc` says why it is not ready",
            },
        },
    },
    "StoreInfo": {
        "type": "object",
        "required": ["listenAddresses", "enrUri"],
        "properties": {
            "listenAddresses": {"type": "array", "items": {"type": "string"}},
            "enrUri": {"type": "string"},
        },
    },
}


def document(version: str) -> dict[str, Any]:
    """The document of a server of this version."""
    parameters = [
        {"name": one.name, "in": "query", "description": one.description, "schema": one.schema, "example": one.example}
        for one in PARAMETERS
    ]
    queries = _call(
        "queryStoredMessages",
        "One page of stored messages, oldest first.",
        {"200": _json("the page", "StoreAnswer"), "400": _text("a parameter is malformed")},
    )
    queries["parameters"] = parameters
    queries["responses"]["500"] = _text("the cursor is not a stored message, or a fault of the server")
    queries["responses"]["503"] = _text("the archive cannot be read now, with the reason; try again later")
    ready, not_ready = _json("queries are answered", "StoreHealth"), _json("not now, with the reason", "StoreHealth")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Waku Store v3",
            "version": version,
            "description": "The history of the `envelopes` table, answered as running Waku nodes answer.",
        },
        "paths": {
            "/store/v3/messages": {"get": queries},
            "/health": {"get": _call("storeHealth", "Whether queries are answered.", {"200": ready, "503": not_ready})},
            "/version": {"get": _call("storeVersion", "The version.", {"200": _text("as text")})},
            "/info": {"get": _call("storeInfo", "A node's addresses; none.", {"200": _json("none", "StoreInfo")})},
        },
        "components": {"schemas": _SCHEMAS},
    }


def _call(operation: str, summary: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"operationId": operation, "summary": summary, "tags": ["store"], "responses": responses}


def _json(description: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "content": _TEXT}
