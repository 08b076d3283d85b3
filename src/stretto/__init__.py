"""Stretto serves language models to many users at once.

This module knows its version and nothing else. It imports nothing, so `import stretto.core` works
with no package installed; what needs a backend is looked up when it is first asked for.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]

TYPE_CHECKING = False

if not TYPE_CHECKING:  # a type checker must not take every unknown name for granted

    def __getattr__(name: str) -> object:
        if name == "LLM":
            # An AttributeError would lose its text in `from stretto import LLM`.
            raise ImportError(
                "stretto.LLM arrives with the llama.cpp backend, which this version does not have yet.\n"
                "hint: what works today is stretto.core and its simulator; see README.md"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
