"""Logs: one line per event on stderr, as JSON or aligned for a terminal. Never a prompt or an answer.

Lines of other libraries (uvicorn) use the same renderer. Tracebacks are plain, because rich ones print local
variables, which may contain a user's text.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

import structlog

NOTICES = "stretto.notices"


def _lift_event(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Restore the fields of a line that `log_event` wrote through Python's logging."""
    record = event.get("_record")
    fields = getattr(record, "stretto_fields", None)
    if fields is not None:
        event |= fields
        event["event"] = getattr(record, "stretto_event", event["event"])
    return event


_SHARED: list[Any] = [
    _lift_event,
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def set_up(*, json_lines: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Configure logging, once per process."""
    out = stream or sys.stderr
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderer(json_lines=json_lines, colors=out.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger(NOTICES).setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    for noisy in ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx"):
        logging.getLogger(noisy).setLevel("WARNING")


def reset() -> None:
    """Undo `set_up`, for tests that share a process."""
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = []
    logging.getLogger().setLevel(logging.WARNING)
    logging.captureWarnings(False)
    sys.excepthook = sys.__excepthook__
    threading.excepthook = threading.__excepthook__


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("stretto").critical("uncaught %s", kind.__name__, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None and not issubclass(failure.exc_type, SystemExit):
        _log_uncaught(failure.exc_type, failure.exc_value, failure.exc_traceback)


def notice(event: str, level: int = logging.INFO, **fields: str | int | float) -> None:
    """Log regardless of `log_level`: where the server listens, and why it did not start."""
    log_event(logging.getLogger(NOTICES), level, event, fields)


def _renderer(*, json_lines: bool, colors: bool) -> list[Any]:
    if json_lines:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=20
        )
    ]


def log_event(log: logging.Logger, level: int, name: str, fields: Mapping[str, str | int | float]) -> None:
    """Log an event with fields through Python's logging, so that programs using the SDK receive it.

    With `set_up` they stay structured fields; other handlers show them after the name.
    """
    if log.isEnabledFor(level):
        said = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
        log.log(level, "%s", said, extra={"stretto_event": name, "stretto_fields": dict(fields)})


def logger(name: str) -> Any:
    return structlog.get_logger(name)
