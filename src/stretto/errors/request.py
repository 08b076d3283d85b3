"""Errors that the caller of a request must fix: its fields, its prompt, its grammar, its route."""

from __future__ import annotations

from stretto.errors.base import StrettoError


class InvalidRequestError(StrettoError):
    code = "invalid_request"
    http_status = 400


class PromptTooLongError(InvalidRequestError):
    code = "prompt_too_long"
    hint = "shorten the prompt, or raise context_window"

    @classmethod
    def of(cls, tokens: int, window: int, *, at_least: bool = False) -> PromptTooLongError:
        """A prompt must be shorter than the window: the first generated token needs a place in it."""
        count = f"at least {tokens}" if at_least else str(tokens)
        return cls(f"the prompt has {count} tokens; it must be shorter than the context window of {window}")


class EmptyPromptError(InvalidRequestError):
    code = "empty_prompt"
    hint = "send at least one token"


class DuplicateRequestError(InvalidRequestError):
    code = "duplicate_request_id"
    http_status = 409
    hint = "use a new id for each request"


class InvalidTokenError(InvalidRequestError):
    code = "invalid_token"
    hint = "tokenize with this model's tokenizer"


class InvalidMessageError(InvalidRequestError):
    code = "invalid_message"
    hint = "send messages as {role, content}; roles: system, developer, user, assistant, tool"


class TemplateRefusedError(InvalidRequestError):
    code = "template_refused"
    hint = "use the order and the roles of messages that this model expects"


class InvalidMediaError(InvalidRequestError):
    code = "invalid_media"
    hint = "send a picture or a sound that is not damaged, in a format that the documentation names"


class InvalidStopError(InvalidRequestError):
    code = "invalid_stop"
    hint = "send at most 16 stop strings of 1 to 256 characters"


class InvalidToolError(InvalidRequestError):
    code = "invalid_tool"
    hint = "send tools as {type: function, function: {name, description, parameters}}"


class InvalidGrammarError(InvalidRequestError):
    code = "invalid_grammar"
    hint = "correct the schema, regex or grammar"


class GrammarTooComplexError(InvalidRequestError):
    code = "grammar_too_complex"
    hint = "simplify the schema, regex or grammar"


class RequestRefusedError(InvalidRequestError):
    code = "request_refused"
    http_status = 422
    hint = "change the request; the log says how the worker died"


class ReplyTooLargeError(InvalidRequestError):
    code = "reply_too_large"
    hint = "ask for less at once"


class InvalidJsonError(InvalidRequestError):
    code = "invalid_json"
    hint = "send one JSON object"


class FieldError(InvalidRequestError):
    code = "invalid_field"
    param = ""

    def __init__(self, message: str, *, param: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class MissingFieldError(FieldError):
    code = "missing_field"


class UnknownFieldError(FieldError):
    code = "unknown_field"


class InvalidFieldError(FieldError):
    code = "invalid_value"


class UnsupportedFieldError(FieldError):
    code = "unsupported_field"


class ThreadUnsupportedError(UnsupportedFieldError):
    code = "thread_unsupported_request"  # the name that Anthropic's clients look for
    hint = "send the whole conversation, without thread"


class UnsupportedByModelError(InvalidRequestError):
    code = "unsupported_by_model"
    hint = "choose a model that can; /v1/models lists what is served"


class MediaTypeError(InvalidRequestError):
    code = "unsupported_media_type"
    http_status = 415
    hint = "send the header content-type: application/json"


class InvalidEncodingError(InvalidRequestError):
    code = "invalid_encoding"
    http_status = 415
    hint = "send the body uncompressed, or as one gzip or deflate stream with that Content-Encoding"


class UnknownRouteError(InvalidRequestError):
    code = "not_found"
    http_status = 404
    hint = "/openapi.json lists the routes"


class WrongMethodError(InvalidRequestError):
    code = "method_not_allowed"
    http_status = 405
