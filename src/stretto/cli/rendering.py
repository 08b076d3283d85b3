"""`stretto show`: the contents of a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.output import heading, line, note, print_json, print_table
from stretto.cli.resolving import file_of
from stretto.cli.text import one_line, size
from stretto.cli.weights import advice_for, type_of

if TYPE_CHECKING:
    from stretto.model_files.gguf import GgufFile
    from stretto.model_files.kind import ModelShape

ITEMS_SHOWN = 8
TEMPLATE_KEY = "tokenizer.chat_template"


def show(
    model: Annotated[str, Parameter(name="MODEL")] = "demo",
    /,
    *,
    template: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Show a model's kind, numbers, tensor types, metadata and chat template.

    Parameters
    ----------
    model
        A .gguf file or a name from `stretto ls`.
    template
        Print the chat template alone.
    json
        As JSON.
    """
    from stretto.model_files import gguf
    from stretto.model_files.kind import shape_of

    file = gguf.read(file_of(context, model))
    if template:
        line(file.template or "")
        return
    shape = shape_of(file)
    adapters = _adapters(context, model, file)
    if json:
        print_json({**_as_json(file, shape), "adapters": adapters})
        return
    _print(file, shape)
    if adapters:
        line()
        heading("Adapters")
        rows = [(each["name"], each["scale"], each["state"], each["path"]) for each in adapters]
        print_table(["NAME", "SCALE", "STATE", "PATH"], rows)
    if (advice := advice_for(type_of(file.tensors.values()), model)) is not None:
        note(advice)


def _adapters(context: GlobalOptions, model: str, file: GgufFile) -> list[dict[str, Any]]:
    """The adapters in the model's settings, each checked against the file."""
    from stretto.errors import AdapterFileError
    from stretto.model_files.adapter import rank_of, read_adapter

    settings = context.settings().settings
    found = []
    for name, each in settings.models.get(model, settings.defaults).adapters.items():
        try:
            adapter = read_adapter(Path(each.path).expanduser(), file)
            state = f"rank {rank_of(adapter)}, {size(adapter.weights_bytes)}"
        except AdapterFileError as error:
            state = one_line(error.message)
        found.append({"name": name, "scale": each.scale, "state": state, "path": each.path})
    return found


@dataclass(frozen=True, slots=True)
class TypeTotal:
    type: str
    tensors: int
    bytes: int


def tensor_types(file: GgufFile) -> list[TypeTotal]:
    """Tensors by type, largest first."""
    totals: dict[str, tuple[int, int]] = {}
    for tensor in file.tensors.values():
        count, total = totals.get(tensor.type.name, (0, 0))
        totals[tensor.type.name] = (count + 1, total + tensor.size)
    found = [TypeTotal(name.upper(), count, total) for name, (count, total) in totals.items()]
    return sorted(found, key=lambda row: (-row.bytes, row.type))


def _numbers(file: GgufFile, shape: ModelShape) -> dict[str, Any]:
    """The properties that determine how a model is served."""
    heads = sorted(set(shape.kv_heads))
    found: dict[str, Any] = {
        "name": file.metadata.get("general.name"),
        "path": str(file.path),
        "architecture": shape.architecture,
        "kind": shape.kind.value,
        "file_bytes": file.identity.size,
        "parts": file.shards,
        "context_length": shape.context_length,
        "vocabulary": shape.vocabulary_size,
        "layers": shape.layers,
        "attention_layers": shape.attention_layers,
        "recurrent_layers": shape.recurrent_layers,
        "embedding_length": shape.embedding_length,
        "heads": shape.heads,
        "kv_heads": heads[0] if len(heads) == 1 else heads,
        "key_length": shape.key_length,
        "value_length": shape.value_length,
        "sliding_window": shape.sliding_window,
        "experts": shape.expert_count,
        "experts_used": shape.expert_used_count,
        "tools": _tools(file.template),
    }
    return found


def _tools(template: str | None) -> str:
    """How tools are shown to the model."""
    from stretto.errors import BrokenTemplateError
    from stretto.text.templates import CHATML, ChatTemplate

    try:
        shown = ChatTemplate(template or CHATML).support.tools
    except BrokenTemplateError:
        return "none: the chat template is broken"
    return "by the template" if shown else "in the system prompt: the template ignores them"


def _as_json(file: GgufFile, shape: ModelShape) -> dict[str, Any]:
    types = tensor_types(file)
    return {
        **_numbers(file, shape),
        "tensor_types": [{"type": t.type, "tensors": t.tensors, "bytes": t.bytes} for t in types],
        "metadata": {key: _json_value(value) for key, value in _metadata(file).items()},
        "template": file.template,
    }


def _metadata(file: GgufFile) -> Mapping[str, Any]:
    return {key: value for key, value in file.metadata.items() if not key.startswith(TEMPLATE_KEY)}


def _json_value(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    return list(value) if isinstance(value, tuple) else {"items": len(value)}


def _short(value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return one_line(str(value))
    if not isinstance(value, tuple):
        return f"[{len(value):,} items]"
    more = f", … {len(value):,} items" if len(value) > ITEMS_SHOWN else ""
    return one_line(", ".join(map(str, value[:ITEMS_SHOWN])) + more)


def _print(file: GgufFile, shape: ModelShape) -> None:
    numbers = {key: value for key, value in _numbers(file, shape).items() if value not in (None, 0, "")}
    numbers["file_bytes"] = f"{file.identity.size:,} ({size(file.identity.size)})"
    print_table(["", ""], [(key.replace("_", " "), value) for key, value in numbers.items()])
    line()
    heading("Tensor types")
    rows = [(row.type, row.tensors, size(row.bytes)) for row in tensor_types(file)]
    print_table(["TYPE", "TENSORS", "SIZE"], rows, right=[1, 2])
    line()
    heading("Metadata")
    print_table(["", ""], [(key, _short(value)) for key, value in _metadata(file).items()])
    line()
    heading("Chat template")
    line(file.template or "(none: ChatML is used)")
