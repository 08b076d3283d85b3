"""What a model runs with on this machine: loaded in a child process, which may crash without ending `doctor`.

Child: `python -m stretto.cli.model_facts MODEL CACHE_DIR [CONFIG]` prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from stretto.cli.context import GlobalOptions
from stretto.model_files.child import run_child

LOAD_TIMEOUT_S = 300.0
SHOWN = ("model", "kind", "backend", "slots", "context_window", "threads", "flash_attention", "cache_types")


def ask(context: GlobalOptions, model: str) -> dict[str, Any]:
    """The loaded model's description, with `quirks`; or `problem`: why there is none."""
    lines: list[str] = []
    arguments = [model, str(context.cache_dir), *([str(context.config)] if context.config else [])]
    end = run_child(__name__, arguments, timeout_s=LOAD_TIMEOUT_S, on_line=lines.append)
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (LookupError, ValueError):
        return {"problem": end.reason}
    return found


def rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """For people: what was chosen, then each quirk and whether it is answered."""
    chosen = [(name, str(found[name])) for name in SHOWN if name in found]
    return chosen + [(name, _text(name, value)) for name, value in found.get("quirks", {}).items()]


def choice_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What `auto` chose: the question, each candidate with an arrow at the chosen one, and its times."""
    shown: list[tuple[str, str, str]] = []
    for one in found.get("choices", {}).get("table", []):
        times = one["ms"] or {one["chosen"]: {}}
        for at, (candidate, probes) in enumerate(times.items()):
            mark = "→ " if candidate == one["chosen"] else "  "
            told = ", ".join(f"{probe} {ms:.3g} ms" for probe, ms in probes.items()) or "not measured"
            if candidate == one["unconfirmed"]:
                told += "; chosen if the next load finds the same"
            shown.append(("" if at else one["question"], mark + candidate, told))
    return shown


def choices_origin(found: dict[str, Any]) -> str:
    choices = found["choices"]
    if choices["origin"] == "measured":
        return (
            f"measured now, in {choices['took_s']:.1f} s; passes without the output layer, prefill per token"
        )
    if choices["origin"] == "cached":
        return f"cached on {choices['date']}; passes without the output layer, prefill per token"
    return "not measured: a GPU computes, or other processes kept this machine busy"


def _text(name: str, value: Any) -> str:
    if name == "own_kernels":
        return f"no: {value}" if value else "yes"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _facts(model: str, cache_dir: str, config: str | None) -> dict[str, Any]:
    from stretto.errors import StrettoError
    from stretto.worker.loading import load
    from stretto.worker.own_process import claim_process

    claim_process()
    try:
        loaded = load(model, {}, cache_dir=cache_dir, config=config)
    except StrettoError as error:
        return {"problem": error.message}
    found = {name: loaded.description[name] for name in SHOWN if name in loaded.description}
    found |= {
        "quirks": dict(loaded.description.get("quirks", {})),
        "choices": dict(loaded.description.get("choices", {})),
        "warnings": list(loaded.description["warnings"]),
    }
    loaded.close()
    return found


if __name__ == "__main__":
    given = [*sys.argv[1:], None][:3]
    sys.stdout.write(json.dumps(_facts(*given)) + "\n")  # type: ignore[arg-type]
