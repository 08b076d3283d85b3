"""Errors of requests that are refused before they are read: keys, hosts, origins, sizes and slow clients."""

from __future__ import annotations

from stretto.errors.base import StrettoError


class AccessError(StrettoError):
    code = "access_refused"
    http_status = 403


class InvalidKeyError(AccessError):
    code = "invalid_api_key"
    http_status = 401
    hint = "send `Authorization: Bearer KEY` (or `x-api-key: KEY`)"


class HostRefusedError(AccessError):
    code = "host_refused"
    http_status = 403
    hint = "call the server by its address, or add the name to allowed_hosts"


class OriginRefusedError(AccessError):
    code = "origin_refused"
    http_status = 403
    hint = "add the page's origin to cors_origins"


class TooLargeError(StrettoError):
    code = "too_large"
    http_status = 413


class BodyTooLargeError(TooLargeError):
    code = "body_too_large"
    hint = "send less, or raise body_bytes_max"


class HeadersTooLargeError(TooLargeError):
    code = "headers_too_large"
    http_status = 431
    hint = "send fewer or shorter headers"


class UrlTooLongError(TooLargeError):
    code = "url_too_long"
    http_status = 414
    hint = "put the data into the body"


class SlowRequestError(TooLargeError):
    code = "request_timeout"
    http_status = 408
    retryable = True
    hint = "send the whole request at once, or raise read_timeout_s"
