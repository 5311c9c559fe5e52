"""Spark's progress of a micro-batch, for tests."""

from __future__ import annotations

import json
from typing import Any

PROGRESS: dict[str, Any] = {
    "id": "q1",
    "runId": "r1",
    "name": "reassembly",
    "batchId": 4,
    "numInputRows": 12,
    "inputRowsPerSecond": float("inf"),
    "processedRowsPerSecond": 3.5,
    "durationMs": {"addBatch": 900, "queryPlanning": 12, "triggerExecution": 1000},
    "stateOperators": [
        {"numRowsTotal": 5, "numRowsUpdated": 2, "memoryUsedBytes": 1000,
         "commitTimeMs": 7, "customMetrics": {"rocksdbSstFileSize": 64}},
        {"numRowsTotal": 3, "numRowsUpdated": 1, "memoryUsedBytes": 24},
    ],
    "sources": [
        {"description": "DeltaSource[file:/data/tables/sds_messages]",
         "endOffset": {"reservoirId": "x", "reservoirVersion": 6, "index": -1}},
        {"description": "DeltaSource[file:/data/tables/sds_messages]",
         "endOffset": json.dumps({"reservoirId": "x", "reservoirVersion": 6, "index": -1})},
    ],
}  # fmt: skip
