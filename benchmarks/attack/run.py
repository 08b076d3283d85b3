"""The attacker's process: one attack, repeated, against a running server.

    python -m benchmarks.attack.run NAME --host H --port P --key K --connections-max N --repeats N

Prints one JSON line per repetition: its seconds, and the error that ended it, if any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

from benchmarks.attack.catalog import ATTACKS
from benchmarks.attack.registry import Attack, AttackTarget


async def repeat(attack: Attack, target: AttackTarget, repeats: int) -> None:
    for number in range(repeats):
        started_s = time.monotonic()
        said = ""
        try:
            async with asyncio.timeout(attack.timeout_s):
                await attack.run(target)
        except Exception as error:  # a server may close an attacker's connection
            said = f"{type(error).__name__}: {error}"[:200]
        line = {"repeat": number, "seconds": round(time.monotonic() - started_s, 3), "error": said}
        print(json.dumps(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(ATTACKS))
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--connections-max", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=1)
    chosen = parser.parse_args()
    target = AttackTarget(chosen.host, chosen.port, chosen.key, chosen.connections_max)
    asyncio.run(repeat(ATTACKS[chosen.name], target, chosen.repeats))
    return 0


if __name__ == "__main__":
    sys.exit(main())
