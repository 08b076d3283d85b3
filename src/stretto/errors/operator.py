"""Errors that the operator must fix: settings, chat templates, benchmark runs."""

from __future__ import annotations

from stretto.errors.base import StrettoError


class BenchError(StrettoError):
    code = "bench_failed"
    hint = "see `stretto bench --help`"


class BrokenTemplateError(StrettoError):
    code = "broken_template"
    http_status = 500
    hint = "set chat_template to a file with a working template, or send plain prompts"


class SettingsError(StrettoError):
    code = "invalid_settings"
    http_status = 500
    hint = "see `stretto config show --origin`"
