"""The commands by name and the global options, as text: all that `stretto --help` needs."""

from __future__ import annotations

# name: (where it is, what it does)
COMMANDS = {
    "serve": ("serve:serve", "Serve a model over HTTP: OpenAI's and Anthropic's APIs."),
    "cluster": ("cluster:app", "Serve a model over several replicas and machines, on Ray Serve."),
    "ps": ("ps:ps", "Show what a running server is doing, and what would help."),
    "run": ("run:run", "Ask a model once and stream its answer."),
    "chat": ("chat:chat", "Talk with a model."),
    "embed": ("embed:embed", "Print the embeddings of texts."),
    "ls": ("listing:ls", "List the local models."),
    "show": ("rendering:show", "Show a model's kind, numbers, tensor types, metadata and template."),
    "pull": ("pull:pull", "Download a model: user/repo[:quant], or demo."),
    "rm": ("listing:rm", "Remove a model."),
    "estimate": ("estimate:estimate", "Estimate the memory of a model and its slots, step by step."),
    "quantize": ("quantize:quantize", "Convert a model file to another weight type."),
    "bench": ("bench:app", "Measure a server under load, or compare several."),
    "doctor": ("doctor:doctor", "Check this machine for missing or slow components."),
    "version": ("about:version", "Print the version."),
}
CONFIG_COMMANDS = {"show": ("config:show", "Print every setting; --origin adds the source of each value.")}
CONFIG_HELP = "Inspect the settings."
SUMMARY = "Serves language models to many users at once."
GLOBAL_OPTIONS = {
    "--config": ("FILE", "Settings file. Default: STRETTO_CONFIG, ./stretto.yaml, then the user's own."),
    "--cache-dir": ("DIR", "Model directory. Default: STRETTO_CACHE_DIR, then the user's cache directory."),
    "--debug": ("", "Show tracebacks."),
}


def help_page() -> str:
    """What `stretto --help` prints."""
    commands = {name: text for name, (_, text) in COMMANDS.items()}
    commands |= {f"config {name}": text for name, (_, text) in CONFIG_COMMANDS.items()}
    options = {f"{name} {value}".strip(): text for name, (value, text) in GLOBAL_OPTIONS.items()}
    options |= {"--help": "Show this page, or a command's own.", "--version": "Print the version."}
    return "\n".join(
        [
            "Usage: stretto COMMAND [OPTIONS]",
            "",
            SUMMARY,
            "",
            "Commands:",
            *(f"  {name:<16} {text}" for name, text in commands.items()),
            "",
            "Global options:",
            *(f"  {name:<16} {text}" for name, text in options.items()),
            "",
            'Try: stretto run "Why is the sky blue?"',
            "",
        ]
    )
