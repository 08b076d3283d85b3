"""Logs each completed batch at debug level, with the ids of its requests."""

from __future__ import annotations

import logging

import structlog

from stretto.client.batch_stats import BatchEvent

log = structlog.get_logger("stretto.engine")


def log_batch(event: BatchEvent) -> None:
    if not logging.getLogger("stretto.engine").isEnabledFor(logging.DEBUG):
        return  # build nothing for a line that is not written
    log.debug(
        "batch-dispatched",
        model=event.key[0],
        size=event.size,
        hold_ms=round(event.hold_ms, 3),
        duration_ms=round(event.duration_ms, 3),
        priorities=event.priority_mix,
        target_size=event.target_size,
        rejected=event.rejected,
        aborted=event.aborted,
        single=event.single,
        failed=event.failed,
        request_ids=list(event.request_ids),
    )
