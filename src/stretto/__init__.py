"""Stretto serves language models to many users at once.

This module knows its version and nothing else. It imports nothing, so `import stretto.core` works
with no package installed; what needs a backend is looked up when it is first asked for.
"""

__version__ = "0.1.0"
__all__ = ["LLM", "__version__"]

TYPE_CHECKING = False

if TYPE_CHECKING:
    from stretto.llm import LLM

if not TYPE_CHECKING:  # a type checker must not take every unknown name for granted

    def __getattr__(name: str) -> object:
        if name == "LLM":
            from stretto.llm import LLM

            return LLM
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
