"""What the text layer answers with.

StrettoError
├── BrokenTemplateError         the model file's chat template does not work: the operator's to fix
└── InvalidRequestError         the caller must change something
    ├── InvalidMessageError     a message has a shape or a part that we cannot render
    ├── TemplateRefusedError    the template itself refused these messages (raise_exception)
    ├── InvalidStopError        too many stop strings, or one too long or empty
    ├── InvalidToolError        a tool definition or tool_choice that makes no sense
    ├── InvalidGrammarError     a schema, regex or grammar that does not compile
    └── GrammarTooComplexError  it compiles, but costs more than the limits allow
"""

from __future__ import annotations

from stretto.errors import InvalidRequestError, StrettoError


class BrokenTemplateError(StrettoError):
    code = "broken_template"
    http_status = 500
    hint = "set chat_template to a template that works, or use the completions API"


class InvalidMessageError(InvalidRequestError):
    code = "invalid_message"
    hint = "send messages as {role, content}; roles: system, developer, user, assistant, tool"


class TemplateRefusedError(InvalidRequestError):
    code = "template_refused"
    hint = "change the order or the roles of the messages as this model wants them"


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


def one_line(text: str, *, chars_max: int = 240) -> str:
    """The first line that says something, without control characters, cut to length."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    line = "".join(character if character.isprintable() else " " for character in line)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
