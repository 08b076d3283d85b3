"""Starts one of the compared servers and prints its URL; Ctrl-C stops it.

    python benchmarks/peers/serve.py llama-server|llama-cpp-python|stretto [--slots 8] [--threads 2]
                                     [--model FILE]

For manual experiments; `benchmarks/compare.py` starts and stops its own servers. Measures nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from stretto.loadgen import known_peers
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import Peer, serving
from stretto.model_files import bundled
from stretto.settings.places import cache_home

BUILD = Path(__file__).resolve().parent.parent.parent / "build"


def peer_of(name: str, given: Serving) -> Peer:
    if name == "stretto":
        return known_peers.stretto(given)
    if name == "llama-server":
        return known_peers.llama_server(BUILD / "peers" / "llama-server", given)
    return known_peers.llama_cpp_python(BUILD / "peers" / "llama-cpp-python" / "bin" / "python", given)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=["llama-server", "llama-cpp-python", "stretto"])
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path)
    chosen = parser.parse_args()
    model = chosen.model or bundled.ensure_default(cache_home())
    given = Serving(model=model, slots=chosen.slots, threads=chosen.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with serving(peer_of(chosen.peer, given), BUILD / "bench-logs") as url:
            print(url, flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
