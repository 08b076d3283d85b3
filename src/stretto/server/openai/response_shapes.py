"""A response and its items as plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.rpc.messages import StreamEnd, UsageMessage
from stretto.server.generation import Answer, finish_reason
from stretto.server.http.error_boundary import new_id
from stretto.server.openai.logprobs import chat_logprobs
from stretto.server.openai.response_tools import CustomTool, FunctionTool, NamespaceTool, Origin, free_text
from stretto.server.openai.responses_request import ResponseRequest


class Envelope:
    """A response without its items; repeated in every event that contains the whole response."""

    def __init__(self, body: ResponseRequest, response_id: str, model: str, created: int) -> None:
        self.logprobs = body.wants_logprobs
        self.origin = body.table.origin
        effort = body.reasoning.effort if body.reasoning is not None else None
        shape = body.text.format if body.text is not None else None
        self._fixed: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": created,
            "model": model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"} if shape is None else shape.model_dump(by_alias=True)},
            "tool_choice": body.choice,
            "tools": [_tool(tool) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": body.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
            "background": False,
        }

    def begun(self) -> dict[str, Any]:
        return self._with("in_progress", [], None)

    def ended(self, output: list[dict[str, Any]], end: StreamEnd) -> dict[str, Any]:
        cut = finish_reason(end, calls=False) == "length"
        reply = self._with("incomplete" if cut else "completed", output, usage_of(end.usage))
        reply["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        return reply

    def failed(self, code: str, message: str) -> dict[str, Any]:
        reply = self._with("failed", [], None)
        reply["error"] = {"code": code, "message": message}
        return reply

    def _with(self, status: str, output: list[dict[str, Any]], usage: Any) -> dict[str, Any]:
        changing = {"status": status, "error": None, "incomplete_details": None}
        return {**self._fixed, **changing, "output": output, "usage": usage}


def _tool(tool: FunctionTool | CustomTool | NamespaceTool) -> dict[str, Any]:
    """Adds parameters, which OpenAI's types require of every function."""
    if isinstance(tool, NamespaceTool):
        inner = [_tool(one) for one in tool.tools]
        about = {"type": "namespace", "name": tool.name, "description": tool.description or ""}
        return {**about, "tools": inner}
    shown = {"type": tool.type, "name": tool.name, "description": tool.description}
    if isinstance(tool, CustomTool):
        return {**shown, "format": tool.format or {"type": "text"}}
    return {**shown, "parameters": tool.parameters or {}, "strict": bool(tool.strict)}


def usage_of(usage: UsageMessage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": 0,
            "image_tokens": usage.image_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def message_item(item_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def reasoning_item(item_id: str, status: str, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}


def call_item(item_id: str, call_id: str, arguments: str, status: str, *, origin: Origin) -> dict[str, Any]:
    """A call with the name and type of the client's tool."""
    item: dict[str, Any] = {"id": item_id, "type": "function_call", "status": status, "call_id": call_id}
    item["name"] = origin.name
    if origin.namespace:
        item["namespace"] = origin.namespace
    if origin.custom:
        return item | {"type": "custom_tool_call", "input": free_text(arguments) if arguments else ""}
    return item | {"arguments": arguments}


def items_of(answer: Answer, *, logprobs: bool, origin: Callable[[str], Origin]) -> list[dict[str, Any]]:
    status = "incomplete" if answer.end.finish_reason == "length" else "completed"
    found = []
    if answer.reasoning:
        found.append(reasoning_item(new_id("rs_"), "completed", answer.reasoning))
    if answer.text or not answer.tool_calls:
        entries = chat_logprobs(answer.logprobs)["content"] if logprobs else []
        found.append(message_item(new_id("msg_"), status, [text_part(answer.text, entries)]))
    for call in answer.tool_calls:
        status = "completed" if call.done else "incomplete"
        item = call_item(new_id("fc_"), new_id("call_"), call.arguments, status, origin=origin(call.name))
        found.append(item)
    return found
